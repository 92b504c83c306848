"""The picture of the loss: its axis is the step, or the time where the log gives no steps; it mixes neither."""

import pytest

from launcher.errors import RunError
from launcher.runs.curves import Point
from launcher.runs.picture import _axis, draw


def point(step, time, value, name="loss"):
    return Point(1, 0, step, time, name, value)


def test_losses_without_a_step_are_drawn_over_the_time(tmp_path):
    """Minutes since the first value of any metric."""
    found = [point(None, 60.0, 0.1, "lr"), *(point(None, 60.0 + 30 * n, 2.0 - n / 10) for n in range(5))]
    axis = _axis(found[1:], found)
    assert axis.label == "minutes (the log gives no step)"
    assert [axis.at(one) for one in found[1:]] == [0.0, 0.5, 1.0, 1.5, 2.0]
    draw("0101-sft-aaaa", found, [], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_most_losses_decide_the_axis_and_the_others_are_left_out(tmp_path):
    """A point without a step has no place among steps."""
    found = [*(point(step, 60.0 + step, 2.0) for step in range(5)), point(None, 70.0, 9.0)]
    axis = _axis(found, found)
    assert (axis.label, axis.has(found[0]), axis.has(found[-1])) == ("step", True, False)
    draw("0101-sft-aaaa", found, [], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 1000


def test_a_training_loss_by_another_name_is_drawn_where_nothing_is_called_loss(tmp_path):
    """A log that only has `train_loss` beside evaluations has a picture; one without any loss has none."""
    draw("0101-sft-aaaa", [point(1, 60.0, 2.0, "train_loss")], [], tmp_path / "loss.png")
    with pytest.raises(RunError, match="no loss"):
        draw("0101-sft-aaaa", [point(1, 60.0, 2.0, "accuracy")], [], tmp_path / "none.png")
