"""What people who rent for the first time do: terminals that are closed, machines ended by name, looks at what is gone."""

import json
import os
import pty
import re
import subprocess

import pytest
from testbed.client import LAUNCH, until

ON_RENTED = ("--host", "rented", "--profile", "a100_40gb")
TRAIN = """
import os, sys, time
os.makedirs("out", exist_ok=True)
open("out/weights", "w").write("w" * 1000)
print("begun", flush=True)
while "wait" in sys.argv and not os.path.exists("/home/ubuntu/go"): time.sleep(0.05)
open("late", "w").write("late")
sys.exit("fail" in sys.argv)
"""


@pytest.fixture
def project(lambda_cloud):
    """A project with a script."""
    lambda_cloud.client.script(TRAIN)
    return lambda_cloud


def place(project, path):
    return project.client.runs / project.rentals()[-1].intent.run / "outputs" / path


def over(project):
    """Wait until nothing is rented, and nobody looks after it."""
    project.until_gone()
    project.until_left()
    assert not [rental for rental in project.rentals() if rental.is_open]


@pytest.mark.long
@pytest.mark.parametrize("when", ["boot", "run"])
def test_a_terminal_that_goes_away_leaves_no_machine_behind(project, when):
    """In the boot the rent is ended; while the run goes on it is left to a process that brings it home."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *LAUNCH, *ON_RENTED, "--", "python3", "train.py", "wait"],
        cwd=project.client.project,
        env={**project.client.env, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while (b"boot" if when == "boot" else b"begun") not in shown:
        shown += os.read(ours, 1 << 16)
    os.close(ours)
    process.wait(timeout=180)
    if when == "run":
        (rental,) = project.rentals()
        assert project.ledger.is_held(rental.nonce)
        assert process.pid not in project.keepers()
        project.go()
    over(project)
    if when == "run":
        assert place(project, "out/weights").read_text() == "w" * 1000


@pytest.mark.long
def test_a_kept_machine_that_is_ended_by_name_comes_home(project):
    """What was written there after the run came home, too. A line for cron was printed."""
    project.table(keep=True)
    said = project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    (instance,) = project.ours()
    assert re.search(rf"\* \* \* \* launch reconcile --adopt {instance} --after ", said)
    project.client.ok("exec", "last", "--", "sh", "-c", "echo x >more")
    done = project.client.run("reconcile", "--adopt", instance)
    assert done.returncode == 0, done.stderr
    over(project)
    assert place(project, "more").read_text() == "x\n"


@pytest.mark.long
def test_a_machine_whose_run_goes_on_is_ended_by_force_alone(project):
    """Otherwise it is said that the run goes on, how it is ended, and nothing is lost."""
    project.client.run("--detach", *ON_RENTED, "--", "python3", "train.py", "wait")
    (instance,) = project.ours()
    done = project.client.run("reconcile", "--adopt", instance)
    assert done.returncode == 1
    assert f"launch reconcile --adopt {instance} --force" in done.stderr
    assert "launch stop" in done.stderr
    assert project.ours() == [instance]
    project.end_keepers()
    done = project.client.run("reconcile", "--adopt", instance)
    assert (done.returncode, "continues" in done.stderr) == (1, True), done.stderr
    assert project.ours() == [instance]
    assert project.keepers()  # it is looked after again
    done = project.client.run("reconcile", "--adopt", instance, "--force")
    assert done.returncode == 0, done.stderr
    over(project)


@pytest.mark.long
def test_an_id_to_adopt_that_no_account_has_is_an_error(project):
    """A person who mistypes it believes otherwise that nothing is paid any more."""
    done = project.client.run("reconcile", "--adopt", "foo")
    assert done.returncode == 1
    assert "foo is not in the list" in done.stderr


@pytest.mark.long
def test_what_reconcile_would_do_is_what_it_does(project):
    """A run that has ended without a process that looks after it comes home, and its machine ends."""
    process = project.started("--", "python3", "train.py", "wait")
    process.kill()
    process.communicate()
    done = project.client.run("reconcile", "--dry-run")
    assert (done.returncode, "wanted" in done.stdout) == (0, True), done.stderr
    (rental,) = project.rentals()
    assert not project.ledger.is_held(rental.nonce)
    project.go()
    until(lambda: "late" in project.client.run("ls", "last").stdout, "the end of its script")
    done = project.client.run("reconcile", "--dry-run")
    assert done.returncode == 1
    assert "orphan" in done.stdout
    assert "would be downloaded" in done.stderr
    assert len(project.ours()) == 1
    assert project.client.run("reconcile").returncode == 0
    over(project)
    assert place(project, "out/weights").exists()


@pytest.mark.long
def test_an_attached_client_sees_the_end_of_a_run_that_a_keeper_brings_home(project):
    """The machine goes away under it; it shows the end, and leaves with the run's code."""
    project.client.run("--detach", *ON_RENTED, "--", "python3", "train.py", "wait", "fail")
    attached = project.client.start("attach", "last")
    assert "another process on this computer downloads its files" in attached.stderr.readline()
    (keeper,) = project.keepers()
    assert keeper != attached.pid
    with project.service.holding("terminate"):
        project.go()
        _, said = attached.communicate(timeout=90)
    assert attached.returncode == 1, said
    assert "another process on this computer downloads its files and ends the rental   launch hosts" in said
    over(project)


VERBS = {
    "ps": (0, "failed"),
    "logs last": (0, "begun"),
    "ls last": (0, "out/weights"),
    "pull last": (0, "the downloaded files are in"),
    "pull last out/weights": (0, "the downloaded files are in"),
    "pull last out/none": (4, "launch ls"),
    "cp last:out/weights copy": (0, "1.0 kB   copy"),
    "cp last:out folder": (0, "1.0 kB   folder"),
    "cp last:none copy": (4, "its rented machine was given back"),
    "stop last --yes": (0, "has failed"),
    "recover last": (4, "start the run again   launch rerun"),
    "rm --here --yes last": (1, "launch rm --here --force"),
    "rm --yes last": (0, "its rented machine is gone"),
    "rm --here --force --yes last": (0, "record here removed"),
}


@pytest.mark.long
def test_verbs_of_a_run_whose_machine_was_given_back(project):
    """None connects to its address, which is another customer's by now; each says what is here."""
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py", "fail")
    assert done.returncode == 1
    over(project)
    found = {}
    for words in VERBS:
        seen = project.client.run(*words.split())
        text = seen.stdout + seen.stderr
        assert "sshd" not in text
        assert "may still train" not in text
        found[words] = (seen.returncode, VERBS[words][1] if VERBS[words][1] in text else text)
    assert found == VERBS
    assert (project.client.project / "copy").read_text() == "w" * 1000
    assert (project.client.project / "folder" / "weights").read_text() == "w" * 1000


GONE = ("attach", "recover", "recover --host rented", "stop --yes", "resume", "pull --checkpoint last")


def check_what_is_named(project):
    """Each verb says that the machine is gone, by one exit code; the next command is none that would be refused, or itself."""
    run = project.rentals()[-1].intent.run
    for words in GONE:
        verb, *options = words.split()
        seen = project.client.run(verb, run, *options)
        assert seen.returncode == 4, (words, seen.stderr)
        assert "its rented machine is gone: it was ended elsewhere, or taken away" in seen.stderr, words
        assert f"launch rerun {run[-6:]} --host rented" in seen.stderr, words
        assert "answers" not in seen.stderr, words
        assert re.findall(r"launch (?:recover|resume|attach) \w+", seen.stderr) == [], words
    seen = project.client.run("ls", run)
    assert "its rented machine is gone" in seen.stderr
    assert "launch ls" not in seen.stderr
    assert "answered" not in seen.stderr


@pytest.mark.long
def test_a_run_whose_machine_died_is_gone(project):
    """It is not unreachable: nobody waits for it, and its record can be removed."""
    process = project.started("--", "python3", "train.py", "wait")
    process.kill()
    process.communicate()
    (one,) = project.service.alive()
    one.gone = project.clock.now()
    project.instances.end(one)
    project.client.run("attach", "last")
    over(project)
    check_what_is_named(project)
    row = project.client.ok("ps").splitlines()[1]
    assert " gone " in row
    assert "its rented machine is gone: it was ended elsewhere, or taken away; it cost at most $" in row
    assert project.client.run("rm", "--yes", "last").returncode == 0
    assert " stopped " in project.client.ok("ps")
    assert project.client.run("rm", "--yes", "--here", "--force", "last").returncode == 0
    assert "no runs of yours yet" in project.client.ok("ps")


@pytest.mark.long
def test_what_a_rent_cost_is_said_where_people_look(project):
    """At the end of a launch, by ps and by stop, and as a number for programs; the ledger has the same."""
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py", "fail")
    over(project)
    (rental,) = project.rentals()
    paid = f"rent ${rental.cents / 100:.2f} at most"
    assert paid.replace("rent ", "rent     ") in done.stderr
    assert paid in project.client.ok("ps")
    assert project.client.summary(rental.intent.run)["rent_cents"] == rental.cents
    assert paid in project.client.ok("stop", "--yes", "last")
    shown = project.client.run("attach", "last", "--json").stdout.splitlines()[-1]
    assert json.loads(shown)["rent_cents"] == rental.cents
    run = project.client.detached(*ON_RENTED, "--", "python3", "train.py", "wait")
    assert re.search(r"rent \$0\.\d\d so far, \$1\.99/h", project.client.ok("ps"))
    said = project.client.ok("stop", "--yes", run)
    assert re.search(
        r"(then terminates the machine|given back): \$0\.\d\d (so far, \$1\.99/h|at most)", said
    ), said
    over(project)
    local = project.client.detached("--host", "local", "--", "python3", "train.py")
    assert project.client.summary(local)["rent_cents"] is None


@pytest.mark.long
def test_a_machine_that_is_kept_is_not_forgotten_when_another_is_rented(project):
    """The note has both commands: to use it, and to end it."""
    project.table(keep=True)
    first = project.client.run(*ON_RENTED, "--", "python3", "train.py")
    assert "is kept, at" not in first.stderr
    (instance,) = project.ours()
    run = project.rentals()[0].intent.run
    second = project.client.run(*ON_RENTED, "--", "python3", "train.py").stderr
    assert f"the machine of {run} is kept, at $1.99/h, and this rents another one" in second
    assert f"use that machine by hand   launch exec {run[-6:]} -- …" in second
    assert "launch resume" not in second
    refused = project.client.run("resume", run, "--set", "steps=9")
    assert refused.returncode == 1
    assert "it has saved no checkpoint" in refused.stderr
    assert re.search(r"its machine is kept: \$0\.\d\d so far, \$1\.99/h", refused.stderr)
    assert f"launch exec {run[-6:]} -- …     end it   launch reconcile --adopt {instance}" in refused.stderr
    assert "probe" not in refused.stderr
    assert project.client.ok("exec", run, "--", "echo", "there") == "there\n"
    for one in project.ours():
        done = project.client.run("reconcile", "--adopt", one, "--force")
        assert f"ending {one}, until" in done.stderr
        assert re.search(rf"{one} +gpu_1x_a100\S* +\w{{6}} +\$\d\.\d\d +ended", done.stdout)
    assert instance not in project.ours()
    over(project)


@pytest.mark.long
def test_a_machine_with_another_card_than_was_offered_is_given_back(project):
    """To launch again would rent a new one, so what is said is how to choose another."""
    project.service.state.kinds["gpu_1x_h100_pcie"].free["us-east-1"] = 1
    done = project.client.run("--host", "rented", "--profile", "h100", "--yes", "--", "python3", "train.py")
    assert done.returncode == 3
    assert "not a H100 80 GB, which its offer promised" in done.stderr
    assert "launch offers --host rented" in done.stderr
    assert "uses the host's own card" not in done.stderr
    over(project)
