"""A run at Kaggle that is longer than a session: each segment goes on from the last one's checkpoint, and is pushed once.

Judged by the stand-in's ledger, and by that of the training, which lies outside of the run.
"""

import os
import random
import signal
import subprocess

import pytest
from testbed.client import until

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="each test waits for several sessions"),
]

STEPS = 12
SESSION_HOURS = 0.004
"""14.4 s, of which the last quarter is for saving."""
KILLS = 10
EARLY = 2
"""So many launches may be killed before they have begun a run."""
LONGEST_S = 5.0
SEEDS = range(1, 1 + int(os.environ.get("LAUNCH_SEGMENT_KILLS", "1")))
"""`make segments` asks for more."""


@pytest.mark.long
def test_a_job_of_three_sessions_ends_as_one_without_a_break(kaggle_account):
    """No step is trained twice, each segment is pushed once, what the next one needs is there, and nothing stays."""
    kaggle_account.host(session_hours=SESSION_HOURS)
    kaggle_account.pause_at(5, 9)
    said = kaggle_account.client.seen(*kaggle_account.words())
    (run,) = [path.name for path in kaggle_account.client.runs.glob("[0-9]*")]
    assert "succeeded" in said
    assert said.count("its session has ended at its limit") == 2
    kaggle_account.assert_pushed_once(run, 3)
    assert kaggle_account.waits() == [5, 9]
    model = kaggle_account.client.runs / run / "artifacts" / "model"
    assert kaggle_account.judge(STEPS, model) == 0
    assert kaggle_account.kernels() == []


def _never_began(words):
    """Whether a launch was killed before its push, so that nothing is there to attach to."""
    return "has no run" in words


def _recorded(client):
    """Return the runs that are in the index; a launch that is killed before may leave a folder there without an entry."""
    return [path.parent.name for path in client.index.glob("[0-9]*/run.json")]


def killed_at_random(account, kills, dice):
    """Launch and attach, and kill the client each time after a random while; return the run, and how often it was killed at work."""
    client, at_work = account.client, 0
    for number in range(kills + 1):
        known = _recorded(client)
        words = ["attach", "last"] if known else account.words()
        process = client.start(*words)
        if number == kills:
            out, err = process.communicate(timeout=240)
            assert process.returncode == 0, out + err
            return known[0], at_work
        if number >= EARLY and not known:  # a busy machine may take longer to begin than the longest while
            until(lambda: _recorded(client), "the run", every=0.1)
        try:
            process.wait(dice.uniform(0.2, LONGEST_S))
        except subprocess.TimeoutExpired:
            at_work += 1
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        _, err = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL) or _never_began(err), err
    raise AssertionError("unreachable")


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_killed_ten_times_loses_nothing_and_pushes_nothing_twice(
    kaggle_account, seed, record_property
):
    """Three sessions all the same; of an interval at most is trained again, and the model is that of an unbroken training."""
    kaggle_account.host(session_hours=SESSION_HOURS)
    kaggle_account.pause_at(5, 9)
    run, at_work = killed_at_random(kaggle_account, KILLS, random.Random(seed))
    pushed = kaggle_account.pushes()
    kaggle_account.assert_pushed_once(run, len(pushed))
    model = kaggle_account.client.runs / run / "artifacts" / "model"
    again = kaggle_account.judge(STEPS, model)
    assert kaggle_account.kernels() == []
    record_property("seed", str(seed))
    record_property("killed", f"{at_work} of {KILLS} at work")
    record_property("pushed", f"{len(pushed)} segments, each once")
    record_property("again", f"{again} of {STEPS} steps")
