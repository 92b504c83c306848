"""The history of a run's attempts: whether its starts make progress."""

import pytest

from launcher.agent.attempt.history import reached


def starts(*steps, **more):
    """Attempts that used up the time of their job, by the step that each reached."""
    return [{"reason": "session-limit", "step": step, **more} for step in steps]


@pytest.mark.parametrize(
    ("states", "fruitless"),
    [
        ([], 0),
        (starts(24, 24, 8), 2),
        (starts(24, 48, 47, 72), 0),
        (starts(None, None, None), 0),
        (starts(24, None), 1),
        ([*starts(24), *starts(24, checkpoint=30)], 0),
        ([*starts(24), {"reason": "ended-by-slurm", "step": 3}], 0),
        ([*starts(23, begins_at=1), *starts(28, begins_at=1)], 1),
        ([*starts(23, begins_at=1), *starts(28, begins_at=21)], 0),
        ([*starts(23, begins_at=0), *starts(28, 29, begins_at=0)], 2),
        ([{"reason": "ended-by-slurm", "step": 4, "begins_at": 0}, *starts(35, begins_at=0)], 0),
        ([*starts(23, begins_at=1), {"reason": "ended-by-slurm", "step": 30, "begins_at": 1}], 0),
        ([*starts(5000), {"reason": "nan-divergence", "failure": {"class": "nan-divergence"}}, *starts(3000, 3400)], 0),
    ],
)  # fmt: skip
def test_a_start_makes_progress_if_it_reaches_a_later_step_or_checkpoint(states, fruitless):
    """A start without steps is not judged. A preemption does not use a job's whole time, and a failure sets a run back."""
    assert reached(states).fruitless == fruitless
