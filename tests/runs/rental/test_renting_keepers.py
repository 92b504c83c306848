"""What a keeper does that cannot end a rent yet: a machine that is kept, and files that do not come home."""

import os
import re
import signal
import subprocess
import sys

import pytest
from testbed.client import until
from testbed.tables import mostly_long

ON_RENTED = ("--host", "rented", "--profile", "a100_40gb")
NEW_KEY = "secret_alice_0000111122223333444"
TRAIN = """
import os, sys
os.makedirs("out", exist_ok=True)
open("out/weights", "w").write("w" * 1000)
if "locked" in sys.argv: os.chmod("out/weights", 0)
"""


@pytest.fixture
def project(lambda_cloud):
    """A project with a script."""
    lambda_cloud.client.script(TRAIN)
    return lambda_cloud


def log_of(project):
    (rental,) = project.rentals()
    path = project.ledger.place(rental.nonce) / "keeper.log"
    return path.read_text() if path.exists() else ""


def is_held(project):
    return project.ledger.is_held(project.rentals()[0].nonce)


def later(project, condition, what):
    """Let five minutes pass again and again until something has happened: a keeper may be only about to wait."""
    until(lambda: condition() or project.clock.sleep(301), what, every=2)


def test_a_kept_machine_is_ended_at_its_limit(project):
    """A process here waits for it; `launch hosts` shows that it does, and no command has to be typed."""
    project.table(keep=True)
    said = project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    assert "its machine is kept" in said
    assert is_held(project)
    (row,) = [
        line
        for line in project.client.ok("hosts").splitlines()
        if line.startswith(project.rentals()[0].intent.run)
    ]
    assert "alive" in row
    project.clock.sleep(3.5 * 3600)
    assert project.client.run("reconcile").returncode == 0
    assert len(project.ours()) == 1
    project.clock.sleep(3600)
    project.until_gone()
    project.until_left()
    (rental,) = project.rentals()
    assert (rental.state, rental.why) == ("ended", "limit")


@pytest.mark.long
@pytest.mark.parametrize("how", ["preempted", "gone", "terminating"])
def test_a_kept_machine_that_is_taken_away_is_noticed(project, how):
    """Long before its limit, by a look at the list now and then; its end, the reason and the cost are on record."""
    project.table(keep=True)
    project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    looks = len(project.service.of("instances"))
    (one,) = project.service.alive()
    if how == "gone":
        one.gone = project.clock.now()
    elif how == "terminating":
        one.asked_to_end, one.gone = project.clock.now(), project.clock.now() + 20
    else:
        one.status = how
    assert is_held(project)
    later(project, lambda: not project.keepers(), "the keeper's end")
    (rental,) = project.rentals()
    assert (rental.state, rental.why) == ("ended", "preempted" if how == "preempted" else "gone")
    assert rental.ended < rental.intent.deadline
    assert len(project.service.of("instances")) < looks + 16
    cost = f"at most ${rental.cents / 100:.2f}"
    assert cost in log_of(project)
    assert "nothing is rented" in project.client.ok("reconcile")
    run = rental.intent.run
    assert run not in project.client.ok("hosts")
    seen = project.client.run("resume", run)
    assert cost in seen.stderr
    assert project.service.state.violations == []


@pytest.mark.long
def test_a_kept_machine_outlasts_an_outage_of_the_service(project):
    """A list that does not come, or lacks the machine once, is no end; nor is an address that does not answer."""
    project.table(keep=True)
    project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    looks = len(project.service.of("instances"))
    for fault in ({"kind": "status", "status": 503}, {"kind": "answer", "data": []}):
        project.service.fail("instances", **fault)
        later(project, lambda seen=looks: len(project.service.of("instances")) > seen, "a look")
        looks = len(project.service.of("instances"))
    project.instances.newest.kill()
    later(project, lambda: len(project.service.of("instances")) > looks, "a look")
    assert is_held(project)
    assert project.rentals()[0].state == "ready"


@pytest.mark.long
def test_a_kept_machine_whose_keeper_was_killed_is_kept_again(project):
    """`launch hosts` says that nobody looks after it; `launch reconcile` has it kept until its limit, which ends it."""
    project.table(keep=True)
    project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    project.end_keepers()
    until(lambda: not is_held(project), "the keeper's end")
    assert "is kept until its limit; to end it" in project.client.ok("hosts")
    assert project.client.run("reconcile").returncode == 0
    assert is_held(project)
    project.clock.sleep(5 * 3600)
    project.until_gone()


ASKING = """
import sys, time
from pathlib import Path
from launcher.rental.ledger import RentalLedger
lock = RentalLedger(Path(sys.argv[1])).ask_for(sys.argv[2])
print(lock is not None, flush=True)
time.sleep(600)
"""


def asking_for(project, rental):
    """A command that asks for the machine of a rental, which prints once it has asked."""
    folder = project.ledger.place(rental.nonce).parent
    return subprocess.Popen(
        [sys.executable, "-c", ASKING, folder, rental.nonce], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.long
def test_a_command_that_was_killed_asks_for_no_machine(project):
    """It asked the process that keeps the machine to give it up: that one stays, and ends the rent at its limit."""
    project.table(keep=True)
    project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    (keeper,) = project.keepers()
    (rental,) = project.rentals()
    os.kill(keeper, signal.SIGSTOP)
    try:
        with asking_for(project, rental) as asker:
            assert asker.stdout.readline() == "True\n"
            asker.kill()
    finally:
        os.kill(keeper, signal.SIGCONT)
    looks = len(project.service.of("instances"))
    project.later(lambda: len(project.service.of("instances")) > looks, "a look")
    assert project.keepers() == [keeper]
    project.clock.sleep(5 * 3600)
    project.until_gone()
    project.until_left()


@pytest.mark.long
@pytest.mark.parametrize("ends", ["killed", "stopped"])
def test_a_command_that_dies_before_it_has_the_machine_leaves_it_to_its_keeper(project, ends):
    """The keeper has given it up by then; it takes it again, also from a command that only hangs."""
    project.table(keep=True)
    project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    (keeper,) = project.keepers()
    (rental,) = project.rentals()
    with asking_for(project, rental) as asker:
        assert asker.stdout.readline() == "True\n"
        until(lambda: not is_held(project), "the machine that is given up")
        if ends == "killed":
            asker.kill()
        until(lambda: is_held(project), "the machine that is taken again", timeout=60)
        asker.kill()
    until(lambda: project.keepers() == [keeper], "the keeper alone")
    project.clock.sleep(5 * 3600)
    project.until_gone()
    project.until_left()


def in_the_way(project):
    """A detached run of whose files one cannot be read on its machine. Return once its keeper has said so."""
    done = project.client.run("--detach", *ON_RENTED, "--", "python3", "train.py", "locked")
    assert done.returncode == 0, done.stderr
    until(lambda: "its machine is not terminated" in log_of(project), "a try to bring the files home")
    assert len(project.ours()) == 1


@pytest.mark.long
def test_a_keeper_tries_again_to_bring_files_home(project):
    """Once they can be read, they come, and the rent ends."""
    in_the_way(project)
    assert is_held(project)
    project.instances.newest.enter(
        "find", "/home/ubuntu/.launch", "-name", "weights", "-exec", "chmod", "644", "{}", ";"
    )
    project.until_gone()
    (rental,) = project.rentals()
    assert (project.client.runs / rental.intent.run / "outputs" / "out" / "weights").read_text() == "w" * 1000
    project.until_left()
    assert project.rentals()[0].why == "the run has ended: succeeded"


@pytest.mark.long
def test_a_limit_ends_a_rent_although_files_are_not_home(project):
    """It was said in the log all the time, with what to type."""
    in_the_way(project)
    project.clock.sleep(5 * 3600)
    project.until_gone()
    assert project.rentals()[0].why == "limit"
    assert "files are missing here" in log_of(project)
    project.until_left()


BUG = """
from testbed.sim_clock import wait_by_it
from launcher.runs.rented import final_download
wait_by_it()
download_files = final_download.download_files
def fails(*words):
    if os.path.exists(os.environ["BUG"]):
        raise RuntimeError("a mistake of launcher's own")
    return download_files(*words)
final_download.download_files = fails
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["once it is mended", "at the limit"])
def test_a_bug_ends_no_keeper(project, tmp_path, how):
    """It says where the bug is, tries again, and ends the rent at the limit all the same: nobody pays for a mistake of ours."""
    (tmp_path / "bug").mkdir()
    (tmp_path / "bug" / "sitecustomize.py").write_text(f"import os{BUG}")
    project.client.variables |= {
        "PYTHONPATH": f"{tmp_path / 'bug'}:{project.client.variables['PYTHONPATH']}",
        "BUG": str(tmp_path / "bug" / "is-there"),
    }
    (tmp_path / "bug" / "is-there").touch()
    project.client.ok("--detach", *ON_RENTED, "--", "python3", "train.py")
    until(lambda: "RuntimeError at " in log_of(project), "a failure")
    assert is_held(project)
    assert len(project.ours()) == 1
    if how == "at the limit":
        project.clock.sleep(5 * 3600)
    else:
        (tmp_path / "bug" / "is-there").unlink()
    project.until_gone()
    project.until_left()
    (rental,) = project.rentals()
    assert (rental.why == "limit") == (how == "at the limit")


@pytest.mark.long
def test_who_only_looks_on_sees_the_end(project):
    """A second follower does not look after the machine; when that is gone, it shows how the run ended, and ends too."""
    project.client.script(TRAIN + 'while not os.path.exists("/home/ubuntu/go"): pass\n')
    done = project.client.run("--detach", *ON_RENTED, "--", "python3", "train.py")
    assert done.returncode == 0, done.stderr
    onlooker = project.client.start("attach", "last")
    assert "another process on this computer" in onlooker.stderr.readline()
    project.instances.newest.enter("touch", "/home/ubuntu/go")
    out, said = onlooker.communicate(timeout=90)
    assert onlooker.returncode == 0, out + said
    assert "✓ succeeded" in out + said
    project.until_gone()


@pytest.mark.long
def test_who_only_looks_on_has_the_rent_ended_if_nobody_else_does(project):
    """The process in the background was killed while a second follower saw the run to its end."""
    project.client.script(TRAIN + 'while not os.path.exists("/home/ubuntu/go"): pass\n')
    project.client.ok("--detach", *ON_RENTED, "--", "python3", "train.py")
    onlooker = project.client.start("attach", "last")
    assert "another process on this computer" in onlooker.stderr.readline()
    project.end_keepers()
    project.go()
    out, said = onlooker.communicate(timeout=90)
    assert onlooker.returncode == 0, out + said
    assert "continues" not in said
    project.until_gone()
    project.until_left()
    (rental,) = project.rentals()
    assert (project.client.runs / rental.intent.run / "outputs" / "out" / "weights").read_text() == "w" * 1000


MISTAKEN = """
from launcher.runs.rented import final_download
from launcher.rental.lease import handoff
def fails(*words):
    raise RuntimeError("a mistake of launcher's own")
final_download.download_files = fails
if {is_alone}:
    handoff.start_keeper = fails
from launcher.cli import main
main()
"""


@pytest.mark.long
@pytest.mark.parametrize("is_alone", [False, True])
def test_a_bug_while_a_person_follows_leaves_the_rent_to_a_process_or_says_that_nobody_ends_it(
    project, is_alone
):
    """The machine goes back once another process has brought its files home. If none can be started, what ends it is said."""
    project.client.is_forked = False
    project.client.program = [sys.executable, "-c", MISTAKEN.format(is_alone=is_alone)]
    process = project.client.start(*ON_RENTED, "--", "python3", "train.py")
    _, said = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "RuntimeError: a mistake of launcher's own" in said
    project.client.program = type(project.client).program
    if is_alone:
        assert re.search(r"still rented: \$0\.\d\d so far, \$1\.99/h   launch reconcile", said), said
        assert "no process could be started to end the rental: RuntimeError" in said
        assert not is_held(project)
        assert project.client.run("reconcile").returncode == 0
    else:
        assert "keeps trying to download the missing files" in said
    project.until_gone()
    project.until_left()
    (rental,) = project.rentals()
    assert (project.client.runs / rental.intent.run / "outputs" / "out" / "weights").read_text() == "w" * 1000


@pytest.mark.long
def test_who_only_looks_on_hears_who_ends_the_rent(project):
    """The machine is not gone yet: its cost so far is no reason to type a command."""
    project.client.script(TRAIN + 'while not os.path.exists("/home/ubuntu/go"): pass\n')
    project.client.ok("--detach", *ON_RENTED, "--", "python3", "train.py")
    onlooker = project.client.start("attach", "last")
    assert "another process on this computer" in onlooker.stderr.readline()
    with project.service.holding("terminate"):
        project.go()
        out, said = onlooker.communicate(timeout=90)
    assert re.search(r"  rent     \$0\.\d\d so far, \$1\.99/h; a process here ends it", out + said), said
    project.until_gone()
    project.until_left()


@pytest.mark.long
def test_an_attach_shows_what_the_keeper_brought_before(project):
    """All lines of a run that was detached from its first, and each line once, also once its machine is gone."""
    project.client.script(
        """
import os, time
def wait(name):
    while not os.path.exists("/home/ubuntu/" + name): time.sleep(0.05)
for step in range(5): print("early", step, flush=True)
wait("first")
for step in range(5): print("late", step, flush=True)
wait("go")
print("last", flush=True)
"""
    )
    run = project.client.ok("--detach", *ON_RENTED, "--", "python3", "train.py").split()[-1]

    def brought(words):
        logs = [*(project.client.runs / run).glob("*/log.txt")]
        return any(words in log.read_text() for log in logs)

    until(lambda: brought("early 4"), "the first lines")
    first = project.client.start("attach", run)
    seen = [first.stdout.readline().strip() for _ in range(5)]
    assert seen == [f"early {number}" for number in range(5)]
    first.send_signal(signal.SIGINT)
    out, said = first.communicate(timeout=180)
    assert (first.returncode, out) == (0, ""), said
    project.instances.newest.enter("touch", "/home/ubuntu/first")
    until(lambda: brought("late 4"), "more lines")
    project.go()
    project.until_gone()
    project.until_left()
    out = project.client.ok("attach", run)
    assert [line for line in out.splitlines() if line.startswith(("early", "late", "last"))] == [
        *(f"late {number}" for number in range(5)),
        "last",
    ]
    out = project.client.ok("attach", run)
    assert "late" not in out


def refused_keeper(project):
    """A kept machine whose keeper finds out at its limit that the account has another key by now."""
    project.table(keep=True)
    project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    project.service.state.accounts[0].key = NEW_KEY
    project.clock.sleep(5 * 3600)
    until(lambda: "401" in log_of(project) or "API key" in log_of(project), "the keeper's refusal")
    until(lambda: "key refused" in project.client.ok("hosts"), "its record")
    assert len(project.ours()) == 1


@mostly_long("words", [("reconcile",), ("attach", "last")], ci=(0,))
def test_a_machine_whose_keeper_has_a_refused_key_is_ended_with_a_good_one(project, words):
    """Past its limit; with the key that is refused the keeper stays, since nobody can do better."""
    refused_keeper(project)
    assert project.client.run("reconcile").returncode == 4
    assert is_held(project)
    project.client.variables["LAMBDA_API_KEY"] = NEW_KEY
    done = project.client.run(*words)
    assert project.ours() == [], done.stderr
    assert words != ("reconcile",) or done.returncode == 0
    assert project.rentals()[0].why == "limit"
    project.until_left()


@pytest.mark.long
def test_a_keeper_with_a_refused_key_is_replaced_before_the_limit(project):
    """`launch reconcile` with the new key leaves the machine to another keeper, which ends it at its limit."""
    project.table(keep=True)
    project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    (former,) = project.keepers()
    project.service.state.accounts[0].key = NEW_KEY
    later(project, lambda: "key refused" in project.client.ok("hosts"), "its look at the list")
    project.client.variables["LAMBDA_API_KEY"] = NEW_KEY
    done = project.client.run("reconcile")
    assert done.returncode == 0, done.stderr
    until(
        lambda: len(project.keepers()) == 1 and is_held(project), "another keeper, and the end of the first"
    )
    assert project.keepers() != [former]
    assert "alive" in project.client.ok("hosts")
    assert len(project.ours()) == 1
    project.clock.sleep(5 * 3600)
    project.until_gone()


BEGINS_NOTHING = """
import os, signal
from launcher.errors import ConnectionLostError
from launcher.runs.launch import launching
def dies(*_): os.kill(os.getpid(), signal.SIGKILL)
def loses(*_): raise ConnectionLostError("rented", "the link is lost")
launching._start = {}
from launcher.cli.app import main
main()
"""
"""A client to which something happens once its run is bound to the machine, and before the machine is told to begin it."""


def without_a_run(project, what):
    """Launch with such a client, and return its exit code."""
    words = [sys.executable, "-c", BEGINS_NOTHING.format(what), *ON_RENTED, "--", "python3", "train.py"]
    client = project.client
    done = subprocess.run(words, cwd=client.project, env=client.env, capture_output=True, check=False)
    (rental,) = project.rentals()
    assert (client.index / rental.intent.run / "run.json").exists()
    return done.returncode


@pytest.mark.long
@pytest.mark.parametrize("keep", [False, True])
def test_a_launch_that_dies_before_its_run_begins_leaves_no_rent(project, keep):
    """The run is bound here, and its machine has none: the next reconcile ends the rent, also of a machine that is kept."""
    project.table(keep=keep)
    assert without_a_run(project, "dies") == -signal.SIGKILL
    assert len(project.ours()) == 1
    done = project.client.run("reconcile", "--dry-run")
    assert "has no run" in done.stderr, done.stderr
    assert len(project.ours()) == 1
    done = project.client.run("reconcile")
    assert (done.returncode, project.ours()) == (0, []), done.stderr
    assert project.rentals()[0].why == "its run never began"


@pytest.mark.long
def test_a_keeper_whose_run_never_began_ends_the_rent(project):
    """The link was lost where the run may have begun: the process that was left looks, and finds none."""
    assert without_a_run(project, "loses") != 0
    project.until_gone()
    project.until_left()
    assert project.rentals()[0].why == "its run never began"


@pytest.mark.long
def test_a_run_that_was_removed_on_its_kept_machine_leaves_the_machine(project):
    """The user keeps it, and goes on by hand there; named, it is ended, since nothing of the run can come home."""
    project.table(keep=True)
    project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    (rental,) = project.rentals()
    project.end_keepers()
    machine = project.instances.newest
    machine.enter("rm", "-rf", f"/home/ubuntu/.launch/runs/{rental.intent.run}")
    done = project.client.run("reconcile")
    assert (done.returncode, len(project.ours())) == (0, 1), done.stderr
    project.end_keepers()
    done = project.client.run("reconcile", "--adopt", rental.instance)
    assert (done.returncode, project.ours()) == (0, []), done.stderr


@pytest.mark.long
def test_rm_of_a_run_on_a_kept_machine_says_what_stays_rented(project):
    """And what ends it; a later launch does not send anybody to the run that was removed."""
    project.table(keep=True)
    project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    (rental,) = project.rentals()
    short = rental.intent.run.rpartition("-")[2]
    said = project.client.ok("rm", short)
    assert re.search(r"is still rented: \$0\.\d\d so far, \$1\.99/h", said), said
    ends = re.search(r"launch (reconcile --adopt \S+)$", said, re.MULTILINE).group(1)
    assert ends == f"reconcile --adopt {rental.instance}"
    project.table()
    shown = project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    assert "is kept, at $1.99/h" in shown
    assert f"launch {ends}" in shown
    assert f"exec {short}" not in shown
    assert project.client.run(*ends.split()).returncode == 0
    assert project.ours() == []


@pytest.mark.long
def test_stop_of_a_run_whose_machine_does_not_answer_says_what_it_costs(project):
    """The machine is dead, and its provider lists it still: the rent, and what ends it in any case."""
    project.client.script("import time; print('begun', flush=True); time.sleep(600)\n")
    process = project.started("--", "python3", "train.py")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    project.instances.newest.kill()
    (rental,) = project.rentals()
    done = project.client.run("stop", rental.intent.run)
    assert done.returncode == 4
    assert re.search(r"its machine is still rented: \$0\.\d\d so far, \$1\.99/h", done.stderr), done.stderr
    ends = re.search(r"launch (reconcile --adopt \S+ --force)$", done.stderr, re.MULTILINE).group(1)
    assert project.client.run(*ends.split()).returncode == 0
    assert project.ours() == []
