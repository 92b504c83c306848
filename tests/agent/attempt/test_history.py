"""What the records of a run's earlier attempts say: whether its starts come any further."""

import pytest

from launcher.agent.attempt.history import fruitless_starts


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
        ([*starts(5000), {"reason": "nan-divergence", "failure": {"class": "nan-divergence"}}, *starts(3000, 3400)], 0),
    ],
)  # fmt: skip
def test_a_start_makes_progress_if_it_reaches_a_later_step_or_checkpoint(states, fruitless):
    """One without any steps tells nothing. A preemption is no use of a job's whole time, and a failure sets a run back."""
    assert fruitless_starts(states) == fruitless
