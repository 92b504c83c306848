"""What a person with a credit card is promised: each cent is counted, each machine that is left is said, and what fits comes home."""

import json
import os
import re
import signal
import time

import pytest
from testbed.client import until

from launcher.rental.lease.rental_lock import STALE_S

pytestmark = pytest.mark.slow(reason="each test rents a machine")
ON_RENTED = ("--host", "rented", "--profile", "a100_40gb")
TRAIN = """
import os, sys, time
os.makedirs("out")
open("out/tiny", "w").write("abc")
open("out/small", "w").write("s" * 1000)
if "large" in sys.argv: open("out/large", "wb").write(os.urandom(6_000_000))
words = ["first", "second"]
while not os.path.exists("/home/ubuntu/go"):
    time.sleep(0.05)
    if words and os.path.exists(f"/home/ubuntu/{words[0]}"): print(words.pop(0), flush=True)
"""


@pytest.fixture
def project(lambda_cloud):
    """A project with a script."""
    lambda_cloud.client.script(TRAIN)
    return lambda_cloud


def judge(project):
    """Check by the stand-in's own account that nothing is rented, and that no figure is below the bill."""
    project.until_gone()
    project.until_left()
    figure, bill = (
        sum(one.cents_at(project.clock.now()) for one in project.rentals()),
        project.service.state.cents(),
    )
    assert figure >= bill
    assert project.service.state.violations == []


def test_what_fits_comes_home_the_smallest_first(project, small_disk):
    """The disk here has less room than one file takes: the others come, and what was lost is said by each view."""
    project.client.runs.symlink_to(small_disk)
    project.client.variables["LAUNCH_RUNS"] = str(small_disk)
    project.client.ok("--detach", *ON_RENTED, "--", "python3", "train.py", "large")
    (rental,) = project.rentals()
    run = rental.intent.run
    project.go()
    until(lambda: any(small_disk.glob("2*/outputs/out/small")), "the first files", timeout=90)
    assert any(small_disk.glob("2*/outputs/out/tiny"))
    assert len(project.ours()) == 1
    project.clock.sleep(5 * 3600)
    judge(project)
    lost = r"not everything was downloaded before the end of the rental: out/large \(6.0 MB\)"
    assert re.search(lost, project.client.ok("ps"))
    seen = project.client.run("attach", run)
    assert re.search(lost, seen.stdout + seen.stderr), seen


def test_a_follower_that_is_stopped_looks_after_nothing(project):
    """Ctrl-Z: its lock stays, and every view says that nobody ends the rent; the next command takes the machine from it."""
    process = project.started("--", "python3", "train.py")
    (rental,) = project.rentals()
    holders = project.keepers()
    for pid in holders:
        os.kill(pid, signal.SIGSTOP)
    try:
        project.go()
        for beat in project.client.home.rglob("*.beat"):
            os.utime(beat, (time.time() - STALE_S - 1,) * 2)  # as if they had been stopped for that long
        hosts = project.client.run("hosts")
        (row,) = [line for line in hosts.stdout.splitlines() if line.startswith(rental.intent.run)]
        assert "stopped" in row
        assert "is stopped; to take over" in hosts.stdout + hosts.stderr
        assert "no process here ends it" in project.client.run("ps").stderr
        seen = project.client.run("attach", rental.intent.run)
        assert seen.returncode == 0, seen
    finally:
        for pid in holders:
            os.kill(pid, signal.SIGCONT)
    _, said = process.communicate(timeout=90)
    assert "Traceback" not in said
    judge(project)
    assert project.rentals()[0].why == "the run has ended: succeeded"


@pytest.mark.long
def test_a_machine_that_nobody_looks_after_is_said_by_every_command(project):
    """Its keeper was killed; `ps` and `stop` say so, and what to type."""
    project.client.ok("--detach", *ON_RENTED, "--", "python3", "train.py")
    (rental,) = project.rentals()
    assert "no process here ends it" not in project.client.run("ps").stderr
    project.end_keepers()
    for words in (("ps",), ("ls", rental.intent.run)):
        said = project.client.run(*words).stderr
        assert f"no process here ends it: for {rental.intent.run}   launch reconcile" in said
    project.client.ok("stop", rental.intent.run)
    judge(project)


@pytest.mark.long
def test_an_end_that_is_not_confirmed_hides_no_result(project):
    """All is home, and the run has succeeded: that is shown, and what keeps trying is to end the machine alone."""
    process = project.started("--", "python3", "train.py")
    (one,) = project.service.alive()
    one.lies = 10_000
    project.go()
    out, said = process.communicate(timeout=120)
    assert "✓ succeeded" in out + said
    assert "download the missing files" not in out + said
    assert "keeps trying to terminate its machine" in out + said
    one.lies = 0
    project.clock.sleep(301)
    judge(project)


def test_the_key_that_launcher_made_leaves_the_account(project):
    """It opens machines: once nothing is rented, the account has it no more."""
    project.go() if project.instances.machines else project.instances.files.add("go")
    project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    assert [one["name"] for one in project.service.state.accounts[0].keys.values()] == ["ours"]
    judge(project)


@pytest.mark.long
def test_a_price_that_rises_while_a_machine_runs_is_counted(project):
    """The provider's list says it: no figure is below the bill."""
    process = project.started("--", "python3", "train.py")
    project.service.state.kinds["gpu_1x_a100"].cents = 398
    project.clock.sleep(3600)
    project.go()
    assert process.communicate(timeout=90) is not None
    judge(project)


@pytest.mark.long
def test_a_revoked_key_is_nobody_who_ends_the_rent(project):
    """Neither the follower nor `stop` says that a process here ends it."""
    process = project.started("--", "python3", "train.py")
    (rental,) = project.rentals()
    account = project.service.state.accounts[0]
    key, account.key = account.key, "secret_other_0000111122223333444"
    project.go()
    out, said = process.communicate(timeout=90)
    assert "a process here ends it" not in out + said
    assert "still rented" in out + said
    assert process.returncode != 0
    account.key = key
    assert project.client.run("reconcile").returncode == 0
    judge(project)
    assert rental.nonce == project.rentals()[0].nonce


def test_a_machine_gets_more_time_while_its_run_goes_on(project):
    """Its keeper does not end it at the first limit, its machine does not stop the run then, and both do at the new one."""
    project.client.ok("--detach", *ON_RENTED, "--", "python3", "train.py")
    (rental,) = project.rentals()
    run, first = rental.intent.run, rental.intent.deadline
    asked = project.client.run(
        "extend", run, "--hours", "2"
    )  # $1.99 an hour, 6 hours, and confirm_above is 10
    assert (asked.returncode, "nothing was changed" in asked.stderr) == (3, True), asked
    assert project.rentals()[0].intent.deadline == first
    said = project.client.ok("extend", run, "--hours", "2", "--yes")
    assert "for $11.94 at most" in said
    assert "reconcile --adopt" in said
    (rental,) = project.rentals()
    assert rental.intent.deadline == first + 7200
    told = [
        json.loads(one.read_text())["until"] for one in project.instances.newest.homes.rglob("rented.json")
    ]
    assert len(told) == 2
    assert len({*told}) == 1
    project.clock.sleep(first + 3600 - project.clock.now())
    project.follows_on()
    assert len(project.ours()) == 1
    assert project.client.summary(run)["state"] == "running"
    assert project.client.run("reconcile").returncode == 0
    assert len(project.ours()) == 1
    project.clock.sleep(first + 7200 - project.clock.now())
    judge(project)
    (rental,) = project.rentals()
    assert rental.why == "limit"
    (one,) = project.service.state.machines.values()
    assert one.asked_to_end - one.launched > 6 * 3600 - 300
    assert (project.client.runs / run / "outputs" / "out" / "small").exists()
