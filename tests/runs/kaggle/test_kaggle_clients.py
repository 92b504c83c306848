"""Several clients of one account and one run: one feeds, another takes over, and nothing is pushed twice."""

import os
import signal
from pathlib import Path

import pytest
from testbed.client import until

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="each test starts several clients and sessions"),
]
SESSION_HOURS = 0.004


def feeder_of(account, run, client):
    """The pid of the process that feeds a run in a client's spool, by the kernel's own list of locks."""
    lock = account.run_dir(run, client) / "control" / "feed.lock"
    inode = lock.stat().st_ino if lock.exists() else 0
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if "->" not in words and words[1] == "FLOCK" and int(words[5].rpartition(":")[2]) == inode:
            return int(words[4])
    return None


def killed(process):
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def ended(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    return err + out


@pytest.mark.long
def test_of_two_clients_in_one_home_the_other_feeds_after_a_kill(kaggle_account):
    """Both follow; the one that feeds is killed in the first session, and the next segment is pushed once."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    run = account.detached()
    both = [account.client.start("attach", run) for _ in range(2)]
    feeder = until(lambda: feeder_of(account, run, account.client), "a feeder")
    until(account.waits, "the training's pause")
    (other,) = [process for process in both if process.pid != feeder]
    killed(next(process for process in both if process.pid == feeder))
    until(lambda: feeder_of(account, run, account.client) == other.pid, "the other to feed")
    assert "succeeded" in ended(other)
    account.assert_pushed_once(run, 2)
    account.judge(12, account.client.runs / run / "artifacts" / "model")
    assert account.kernels() == []


@pytest.mark.long
def test_two_clients_in_one_home_follow_a_run_to_its_end(kaggle_account):
    """Both see its end and all of its steps, and only one pushes the second segment."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    run = account.detached()
    both = [account.client.start("attach", run) for _ in range(2)]
    for process in both:
        assert "succeeded" in ended(process)
    account.assert_pushed_once(run, 2)
    assert account.judge(12, account.client.runs / run / "artifacts" / "model") == 0


@pytest.mark.long
def test_a_client_with_an_empty_home_follows_and_pushes_the_next_segment(kaggle_account):
    """The first client is killed for good; the other one finds the run by its host alone, and brings it to its end."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    process = account.client.start(*account.words())
    until(account.waits, "the training's pause")
    killed(process)
    (run,) = [path.name for path in account.client.runs.glob("[0-9]*")]
    other = account.copy("other")
    assert account.row(run, other)["job"] == "counts"
    assert "succeeded" in other.seen("attach", run, "--host", "k")
    account.assert_pushed_once(run, 2)
    assert account.judge(12, other.runs / run / "artifacts" / "model") == 0
    losses = [line for line in other.ok("metrics", run, "--json").splitlines() if '"loss"' in line]
    assert len(losses) == 12
    # The first one comes back: it finds the last segment, and the first one's kernel is its own to delete.
    assert account.kernels() == [f"alice/launch-{run}-{number}" for number in (1, 2)]
    assert account.row(run)["state"] == "succeeded"
    assert "succeeded" in account.client.seen("attach", run)
    assert account.judge(12, account.client.runs / run / "artifacts" / "model") == 0
    assert account.kernels() == [f"alice/launch-{run}-2"]


@pytest.mark.long
def test_a_client_with_an_empty_home_gets_a_run_that_has_ended(kaggle_account):
    """Nobody was there at its end: record, metrics and artifacts come from what the session has left."""
    account = kaggle_account
    run = account.detached()
    account.service.wait_for(f"alice/launch-{run}-1", "COMPLETE")
    other = account.copy("other")
    assert account.row(run, other)["state"] == "succeeded"
    assert "succeeded" in other.seen("attach", run, "--host", "k")
    assert account.judge(12, other.runs / run / "artifacts" / "model") == 0
    assert account.kernels() == [f"alice/launch-{run}-1"]  # it is not this client's
    assert "succeeded" in account.client.seen("attach", run)
    assert account.judge(12, account.client.runs / run / "artifacts" / "model") == 0
    assert account.kernels() == []


@pytest.mark.long
def test_two_homes_follow_one_run_and_the_second_takes_over(kaggle_account):
    """Each has a spool of its own; the one that is killed finds, when it comes back, the segment that the other has pushed."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5, 9)
    first = account.client.start(*account.words())
    until(account.waits, "the training's pause")
    (run,) = [path.name for path in account.client.runs.glob("[0-9]*")]
    other = account.copy("other")
    account.host(other, session_hours=SESSION_HOURS)
    second = other.start("attach", run, "--host", "k")
    until(lambda: account.run_dir(run, other).exists() and feeder_of(account, run, other), "it to feed")
    killed(first)
    until(lambda: 9 in account.waits(), "the second session", 120)
    again = account.client.start("attach", run)
    assert "succeeded" in ended(second)
    assert "succeeded" in ended(again)
    account.assert_pushed_once(run, 3)
    assert account.judge(12, other.runs / run / "artifacts" / "model") == 0


@pytest.mark.long
def test_two_homes_that_follow_to_a_sessions_end_push_one_segment(kaggle_account):
    """Both would push it: the later one takes over what the other has pushed."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5, 9, 11)
    run = account.detached()
    other = account.copy("other")
    account.host(other, session_hours=SESSION_HOURS)
    for client in (account.client, other):
        account.hurry(client)
    both = [account.client.start("attach", run), other.start("attach", run, "--host", "k")]
    until(lambda: account.segment(run)["segment"] == 3, "the third segment", 120)
    until(lambda: account.segment(run, other)["segment"] == 3, "the other to find it")
    until(lambda: 11 in account.waits(), "the last pause")
    account.go_on()
    for process in both:
        assert "succeeded" in ended(process)
    account.assert_pushed_once(run, 3)
    assert account.judge(12, account.client.runs / run / "artifacts" / "model") == 0


@pytest.mark.long
def test_two_homes_push_one_segment_that_does_not_show_at_once(kaggle_account):
    """The other client finds it once it shows, or says that somebody else continued the run; it does not push."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    run = account.detached()
    other = account.copy("other")
    account.host(other, session_hours=SESSION_HOURS)
    for client in (account.client, other):
        account.hurry(client, appear_s=60.0)
    both = [account.client.start("attach", run), other.start("attach", run, "--host", "k")]
    until(lambda: feeder_of(account, run, other), "the other to follow")
    account.service.habits.shows_after_s = 6.0
    assert "succeeded" in ended(both[0])
    said = "".join(both[1].communicate(timeout=120))
    assert "succeeded" in said or "another client continued or stopped the run" in said, said
    account.assert_pushed_once(run, 2)
    assert account.judge(12, account.client.runs / run / "artifacts" / "model") == 0


@pytest.mark.long
def test_a_client_does_not_begin_anew_what_another_has_ended(kaggle_account):
    """Its copy of the run is from the first session; what the first client has done since, the service does not show."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5)
    run = account.detached()
    account.service.wait_for(f"alice/launch-{run}-1", "COMPLETE")
    other = account.copy("other")
    assert account.row(run, other)["state"] == "interrupted"
    other.ok("pull", run, "--host", "k")
    assert "succeeded" in account.client.seen("attach", run)
    account.hurry(other)
    refused = other.run("attach", run, "--host", "k")
    assert (refused.returncode, "another client continued or stopped the run" in refused.stderr) == (1, True)
    account.assert_pushed_once(run, 2)


@pytest.mark.long
def test_a_list_shows_how_far_a_run_is_that_nobody_follows(kaggle_account):
    """Its session's log is read for that, and nobody else needs to."""
    account = kaggle_account
    account.pause_at(5)
    run = account.detached()
    until(lambda: 5 in account.waits(), "the pause")
    assert account.row(run)["state"] == "running"
    until(lambda: account.row(run)["step"] == 4, "the step before the pause")
    account.go_on()
