"""What a run at Kaggle says that does not train, or not yet: each end says why, and what to do, also to one who asks later."""

import json
import threading

import pytest
from testbed.client import until

pytestmark = [pytest.mark.testbed, pytest.mark.slow(reason="each test waits for a session or two")]


def test_a_session_that_dies_before_its_agent_speaks_is_no_run_in_preparation(kaggle_account):
    """Its end is Kaggle's own words; the next session is tried once, and then the run has failed."""
    kaggle_account.service.habits.python = "/bin/false"
    client = kaggle_account.client
    done = client.run(*kaggle_account.words())
    assert done.returncode == 5, done.stdout + done.stderr
    assert "its session ended in an error: the script ended with 1" in done.stderr
    assert "no session runs it" in done.stderr
    (run,) = [path.name for path in client.runs.glob("[0-9]*")]
    assert f"launch recover {run[-6:]}" in done.stderr
    assert kaggle_account.row(run)["state"] == "interrupted"
    again = client.run("attach", run)
    assert again.returncode == 5, again.stderr
    assert "leftover processes" not in again.stderr
    last = client.run("attach", run)
    assert last.returncode == 1, last.stderr
    assert kaggle_account.row(run)["reason"] == "no-progress"
    found = json.loads(client.run("diagnose", "--json", run).stdout)
    assert found["class"] == "no-progress"
    assert "script ended with 1" in found["line"]
    assert "2 sessions in a row" in found["why"]
    kaggle_account.assert_pushed_once(run, 2)


@pytest.mark.long
def test_other_cards_than_planned_are_named_to_one_who_asks_later(kaggle_account):
    """Nothing trained, so there is no log; what came is in the end, in ps, and in the diagnosis."""
    kaggle_account.host(accelerator=None)
    client = kaggle_account.client
    done = client.run(*kaggle_account.words())
    assert done.returncode == 1, done.stdout + done.stderr
    (run,) = [path.name for path in client.runs.glob("[0-9]*")]
    assert kaggle_account.row(run)["reason"] == "wrong-card"
    assert "the session has no card" in done.stderr
    assert "2 x T4 16 GB" in client.ok("ps", "--host", "k")
    found = json.loads(client.run("diagnose", "--json", run).stdout)
    assert (found["class"], found["line"]) == ("wrong-card", "the session has no card")
    assert "--allow-substitute" in client.run("diagnose", run).stdout
    assert kaggle_account.steps() == []


@pytest.mark.long
def test_while_a_session_waits_for_a_machine_that_is_said(kaggle_account):
    """In ps, and once to one who follows; then it trains as ever."""
    kaggle_account.service.habits.queued_s = 6.0
    run = kaggle_account.detached()
    assert kaggle_account.row(run)["evidence"] == {"service": "its session waits for a machine"}
    assert "its session waits for a machine" in kaggle_account.client.ok("ps")
    said = kaggle_account.client.seen("attach", run)
    assert said.count("its session waits for a machine") == 1
    assert "succeeded" in said
    assert "waits for a machine" not in kaggle_account.client.ok("ps")


@pytest.mark.long
def test_without_the_log_the_run_says_that_there_is_no_live_view(kaggle_account):
    """Its status is asked for instead, and its record comes with its outputs: it succeeds all the same."""
    kaggle_account.service.fail("log", "status", status=500, times=10_000)
    kaggle_account.pause_at(5)
    run = kaggle_account.detached()
    until(kaggle_account.waits, "the training")
    client = kaggle_account.client
    follower, said = client.start("attach", run), list[str]()
    reader = threading.Thread(target=lambda: [said.append(line) for line in follower.stderr])
    reader.start()
    until(lambda: "no live view" in client.ok("ps"), "a note of it")
    until(lambda: "no live view" in "".join(said), "one who follows to be told")
    kaggle_account.go_on()
    assert follower.wait(timeout=120) == 0, said
    reader.join()
    follower.stdout.close()
    follower.stderr.close()
    assert "succeeded" in "".join(said)
    assert kaggle_account.row(run)["step"] == 12
