"""What a client shows of a run at Kaggle: its log and its progress from one session to the next, and a link that is lost."""

import json
import re
import signal

import pytest
from testbed.client import until
from testbed.kaggle_account import PAUSES

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="each test starts clients and sessions"),
]
SESSION_HOURS = 0.004
PRINTS = PAUSES.replace("gate, asked =", "print('step', step, flush=True); gate, asked =")


@pytest.mark.long
def test_a_followed_log_goes_on_through_the_sessions_of_a_run(kaggle_account):
    """It prints what each session printed, once, and ends with the run."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.job(hook=PRINTS)
    account.pause_at(5)
    run = account.detached()
    said = account.client.run("logs", run, "-f")
    assert said.returncode == 0, said.stderr
    assert "its session has ended at its limit" in said.stderr
    account.assert_pushed_once(run, 2)
    assert account.row(run)["state"] == "succeeded"
    logs = sorted((account.client.runs / run).glob("[0-9]*/log.txt"))
    assert said.stdout == "".join(path.read_text() for path in logs) != ""


@pytest.mark.long
def test_a_link_is_called_back_only_once_the_service_has_answered(kaggle_account):
    """While it is down, the tries are counted and the waits grow."""
    account = kaggle_account
    account.service.cut_streams_after_s = 0.5
    account.pause_at(5)
    run = account.detached()
    until(account.waits, "the training's pause")
    process = account.client.start("attach", run)
    until(lambda: account.service.calls("log"), "the follower")
    account.service.unplug()
    said = ""
    while max(_tries(said), default=0) < 3:
        line = process.stderr.readline()
        assert line, said
        said += line
    process.send_signal(signal.SIGINT)
    said += process.communicate(timeout=180)[1]
    assert "the link is back" not in said
    assert _tries(said) == sorted({*_tries(said)}), said
    assert "continues to its end" in said
    assert f"launch attach {run.rpartition('-')[2]} · launch recover --all" in said


def _tries(said):
    return [int(number) for number in re.findall(r"Retrying \((\d+)\)", said)]


@pytest.mark.long
def test_ps_alone_shows_how_far_a_live_run_is_and_keeps_it_when_the_service_is_away(kaggle_account):
    """Nobody follows it: `ps` itself brings what the session has sent."""
    account = kaggle_account
    account.pause_at(5)
    said = account.client.seen("--detach", *account.words())
    (run,) = account.runs()
    assert "continues to its end, and the next one begins with" in said
    until(account.waits, "the training's pause")
    row = until(lambda: _row_with_a_step(account, run), "a step")
    assert (row["state"], 1 <= row["step"] <= 4, row["loss"] is None) == ("running", True, False)
    account.service.unplug()
    (away,) = json.loads(account.client.ok("ps", "--json"))["runs"]
    assert away["problem"]
    assert (away["state"], away["step"], away["loss"]) == ("running", row["step"], row["loss"])


def _row_with_a_step(account, run):
    (row,) = json.loads(account.client.ok("ps", "--json"))["runs"]
    return row if row["step"] is not None else None


@pytest.mark.long
def test_another_machine_goes_on_with_a_run_by_the_words_that_ps_shows_there(kaggle_account):
    """The command names the account, works the first time and again, and `--all` finds the run too."""
    account = kaggle_account
    account.host(session_hours=SESSION_HOURS)
    account.pause_at(5, 9)
    run = account.detached()
    account.service.wait_for(f"alice/launch-{run}-1", "COMPLETE")
    other = account.copy("other")
    account.host(other, session_hours=SESSION_HOURS)
    account.hurry(other)
    words = f"recover {run.rpartition('-')[2]} --host k"
    assert f"launch {words}" in other.ok("ps", "--host", "k")
    assert "continues" in other.seen(*words.split())
    account.assert_pushed_once(run, 2)
    assert "nothing to do" in other.seen(*words.split())
    account.service.wait_for(f"alice/launch-{run}-2", "COMPLETE")
    assert "continues" in other.seen("recover", "--all", "--host", "k")
    account.assert_pushed_once(run, 3)
    assert "succeeded" in other.seen("attach", run)
