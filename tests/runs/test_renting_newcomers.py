"""What people who rent for the first time do: terminals that are closed, machines ended by name, looks at what is gone."""

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
    until(lambda: not project.keepers(), "the end of what looks after the rental", timeout=60)
    assert not [rental for rental in project.rentals() if rental.is_open]


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
    process.wait(timeout=60)
    if when == "run":
        (rental,) = project.rentals()
        assert project.ledger.is_held(rental.nonce)
        assert process.pid not in project.keepers()
        project.go()
    over(project)
    if when == "run":
        assert place(project, "out/weights").read_text() == "w" * 1000


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
    until(lambda: not project.keepers(), "the keeper's end")
    done = project.client.run("reconcile", "--adopt", instance)
    assert (done.returncode, "goes on" in done.stderr) == (1, True), done.stderr
    assert project.ours() == [instance]
    assert project.keepers()  # it is looked after again
    done = project.client.run("reconcile", "--adopt", instance, "--force")
    assert done.returncode == 0, done.stderr
    over(project)


def test_an_id_to_adopt_that_no_account_has_is_an_error(project):
    """A person who mistypes it believes otherwise that nothing is paid any more."""
    done = project.client.run("reconcile", "--adopt", "foo")
    assert done.returncode == 1
    assert "foo is not in the list" in done.stderr
