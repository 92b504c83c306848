"""What a keeper does that cannot end a rent yet: a machine that is kept, and files that do not come home."""

import pytest
from testbed.client import until

ON_RENTED = ("--host", "rented", "--profile", "a100_40gb")
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
    until(lambda: not project.keepers(), "the keeper's end")
    (rental,) = project.rentals()
    assert (rental.state, rental.why) == ("ended", "limit")


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


def in_the_way(project):
    """A detached run of whose files one cannot be read on its machine. Return once its keeper has said so."""
    done = project.client.run("--detach", *ON_RENTED, "--", "python3", "train.py", "locked")
    assert done.returncode == 0, done.stderr
    until(lambda: "its machine is not ended" in log_of(project), "a try to bring the files home")
    assert len(project.ours()) == 1


def test_a_keeper_tries_again_to_bring_files_home(project):
    """Once they can be read, they come, and the rent ends."""
    in_the_way(project)
    assert is_held(project)
    project.instances.newest.enter(
        "find", "/home/ubuntu/.launch", "-name", "weights", "-exec", "chmod", "644", "{}", ";"
    )
    project.clock.sleep(61)
    project.until_gone()
    (rental,) = project.rentals()
    assert (project.client.runs / rental.intent.run / "outputs" / "out" / "weights").read_text() == "w" * 1000
    until(lambda: not project.keepers(), "the keeper's end")
    assert project.rentals()[0].why == "the run has ended: succeeded"


def test_a_limit_ends_a_rent_although_files_are_not_home(project):
    """It was said in the log all the time, with what to type."""
    in_the_way(project)
    project.clock.sleep(5 * 3600)
    project.until_gone()
    assert project.rentals()[0].why == "limit"
    assert "not all is here" in log_of(project)
    until(lambda: not project.keepers(), "the keeper's end")


def test_who_only_looks_on_sees_the_end(project):
    """A second follower does not look after the machine; when that is gone, it shows how the run ended, and ends too."""
    project.client.script(TRAIN + 'while not os.path.exists("/home/ubuntu/go"): pass\n')
    done = project.client.run("--detach", *ON_RENTED, "--", "python3", "train.py")
    assert done.returncode == 0, done.stderr
    onlooker = project.client.start("attach", "last")
    assert "another process here" in onlooker.stderr.readline()
    project.instances.newest.enter("touch", "/home/ubuntu/go")
    out, said = onlooker.communicate(timeout=90)
    assert onlooker.returncode == 0, out + said
    assert "✓ succeeded" in out + said
    project.until_gone()
