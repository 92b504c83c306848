"""Rentals at odd moments: a client that slept beyond the limit, an end that is none, a ledger that cannot be written."""

import os
import re
import signal
import subprocess

import pytest

pytestmark = pytest.mark.slow(reason="each test rents a machine")
ON_RENTED = ("--host", "rented", "--profile", "a100_40gb")
TRAIN = """
import os, time
os.makedirs("out")
open("out/weights", "w").write("w" * 1000)
print("begun", flush=True)
while not os.path.exists("/home/ubuntu/go"): time.sleep(0.05)
"""


@pytest.fixture
def project(lambda_cloud):
    """A project with a script."""
    lambda_cloud.client.script(TRAIN)
    return lambda_cloud


def weights(project):
    """The file that the only run has made, here."""
    (rental,) = project.rentals()
    return project.client.runs / rental.intent.run / "outputs" / "out" / "weights"


@pytest.mark.long
def test_a_keeper_that_slept_beyond_the_limit_brings_all_home(project):
    """As on a laptop: cron's `launch reconcile` runs as it wakes up, and leaves it the minutes that it has."""
    project.client.ok("--detach", *ON_RENTED, "--", "python3", "train.py")
    (rental,) = project.rentals()
    project.go()
    (keeper,) = project.keepers()
    os.kill(keeper, signal.SIGSTOP)
    project.clock.sleep(9 * 3600)
    reconcile = project.client.start("reconcile")
    os.kill(keeper, signal.SIGCONT)
    out, said = reconcile.communicate(timeout=120)
    assert reconcile.returncode == 0, out + said
    project.until_gone()
    project.until_left()
    assert weights(project).read_text() == "w" * 1000
    assert project.rentals()[0].state == "ended"
    assert project.rentals()[0].nonce == rental.nonce


@pytest.mark.long
def test_a_keeper_that_hangs_costs_no_more_after_a_reconcile(project):
    """It does not wake up: its lock stays, and its beat does not. The machine is taken from it, and its files come home."""
    project.client.ok("--detach", *ON_RENTED, "--", "python3", "train.py")
    (rental,) = project.rentals()
    (keeper,) = project.keepers()
    os.kill(keeper, signal.SIGSTOP)
    project.clock.sleep(9 * 3600)
    seen = project.client.run("reconcile")
    assert project.ours() == []
    assert seen.returncode == 0, seen.stderr
    assert weights(project).read_text() == "w" * 1000
    assert project.rentals()[0].nonce == rental.nonce
    os.kill(keeper, signal.SIGCONT)
    project.until_left()


@pytest.mark.long
def test_an_end_that_is_answered_and_never_comes_is_said_by_reconcile(project):
    """The list goes on to have it: it is not called ended, what it costs is said, and the exit code is 1."""
    process = project.started("--", "python3", "train.py")
    process.kill()
    process.communicate()
    (one,) = project.service.alive()
    one.lies = 10_000
    project.clock.sleep(9 * 3600)
    seen = project.client.run("reconcile")
    assert seen.returncode == 1, seen.stdout + seen.stderr
    assert re.search(rf"{one.id} .*still listed.*\$\d\d\.\d\d so far", seen.stdout + seen.stderr), seen
    row = next(line for line in seen.stdout.splitlines() if line.startswith(one.id[:12]))
    assert " ended " not in row
    assert project.client.run("reconcile").returncode == 1
    one.lies = 0
    assert project.client.run("reconcile").returncode == 0
    assert project.ours() == []
    assert weights(project).read_text() == "w" * 1000


@pytest.fixture
def read_only(project):
    """A function that lets the folder of rentals be one that cannot be written, or one that can be again."""
    folder = project.ledger.place("x").parent
    mounted = []

    def change(*, is_on):
        if is_on:
            subprocess.run(["mount", "--bind", folder, folder], check=True)
            mounted.append(folder)
            subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        else:
            subprocess.run(["umount", "--lazy", mounted.pop()], check=True)

    yield change
    if mounted:
        change(is_on=False)


@pytest.mark.long
def test_a_ledger_that_cannot_be_written_is_named(project, read_only):
    """Nothing new is rented; what is there is ended all the same, and no command blames anything else."""
    process = project.started("--", "python3", "train.py")
    (rental,) = project.rentals()
    folder = project.ledger.place("x").parent
    read_only(is_on=True)
    project.go()
    _, said = process.communicate(timeout=90)
    assert "Traceback" not in said
    assert project.ours() == [], said
    assert weights(project).read_text() == "w" * 1000
    for words in ((*ON_RENTED, "--", "python3", "train.py"), ("attach", "last"), ("reconcile",), ("hosts",)):
        seen = project.client.run(*words)
        assert "Traceback" not in seen.stderr
        assert "standard output" not in seen.stderr, seen.stderr
        if words[0] == "--host":
            assert (seen.returncode, str(folder) in seen.stderr) == (3, True), seen.stderr
    read_only(is_on=False)
    assert project.client.run("reconcile").returncode == 0
    assert not project.ledger.rental(rental.nonce).is_open
