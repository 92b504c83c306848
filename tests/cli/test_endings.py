"""The next command at the end of a run: one that can work."""

import pytest

from launcher.cli.follow.ending import ending
from launcher.cli.follow.progress import Progress
from launcher.runs.follow.view import Result
from launcher.values.record import RunState

RUN = "20261130-080000-train-w8q2"


def shown(reason, checkpoint, rents_at=None):
    """The last line for a failed run of 60 steps."""
    state = RunState(state="failed", reason=reason, checkpoint=checkpoint)
    result = Result(None, {}, None, {}, None, 1.0, rents_at=rents_at)
    return [line.text.strip() for line in ending(RUN, state, result, Progress(RUN, 60), [])][-1]


@pytest.mark.parametrize(
    ("reason", "checkpoint", "rents_at", "command"),
    [
        pytest.param("exit-nonzero", 40, None, "resume   launch resume w8q2     from step 40", id="steps are left"),
        pytest.param("exit-nonzero", 60, None, "rerun    launch rerun w8q2     ", id="no step is left"),
        pytest.param("user-code-error", 40, None, "rerun    launch rerun w8q2     with your corrected code", id="a mistake in the code"),
        pytest.param("user-code-error", 40, "lambda", "rerun    launch rerun w8q2 --host lambda ", id="rented"),
        pytest.param("user-code-error", None, None, "launch diagnose w8q2 ", id="no checkpoint"),
    ],
)  # fmt: skip
def test_a_resume_is_offered_only_where_it_can_help(reason, checkpoint, rents_at, command):
    assert shown(reason, checkpoint, rents_at).startswith(command)
