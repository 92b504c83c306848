"""When silence is a hang."""

import pytest
from testbed.clock import Clock

from launcher.agent.attempt.hang_watch import MIN_S, TIMES, HangWatch


@pytest.fixture
def clock():
    """A clock that a test sets on."""
    return Clock()


def steps(clock, live, count, pace_s, start=0):
    for step in range(start + 1, start + count + 1):
        clock.now_s += pace_s
        live.note_sign()
        live.note_step(step)


@pytest.mark.parametrize(
    ("hang_s", "pace_s", "limit_s"), [(None, 1.0, MIN_S), (None, 120.0, TIMES * 120.0), (7.0, 120.0, 7.0)]
)
def test_the_limit_follows_the_pace_unless_the_job_says_it(clock, hang_s, pace_s, limit_s):
    """Many times the median step, at least a quarter of an hour."""
    live = HangWatch(hang_s, clock)
    steps(clock, live, 9, pace_s)
    clock.now_s += limit_s
    assert not live.is_hung()
    clock.now_s += 0.1
    assert live.is_hung()
    live.note_sign()
    assert not live.is_hung()


def test_the_pace_is_a_step_s_even_where_only_every_tenth_is_told(clock):
    """Ten steps in ten seconds are one a second; one slow step among many changes nothing."""
    live = HangWatch(None, clock)
    for step in (0, 10, 20, 30):
        live.note_step(step)
        clock.now_s += 10.0
    clock.now_s += 500.0
    live.note_step(40)
    assert live.step_s == 1.0
