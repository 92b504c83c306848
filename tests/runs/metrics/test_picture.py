"""The picture of a run's curves: its axis is the step, or the time where the log gives no steps; it mixes neither."""

import pytest

from launcher.errors import RunError
from launcher.metrics.curves import Point
from launcher.metrics.panels import axis_of, panels_of
from launcher.metrics.picture import draw, figure_of


def point(step, time, value, name="loss"):
    return Point(1, 0, step, time, name, value)


def test_losses_without_a_step_are_drawn_over_the_time():
    """Minutes since the first value of any metric."""
    found = [point(None, 60.0, 0.1, "lr"), *(point(None, 60.0 + 30 * n, 2.0 - n / 10) for n in range(5))]
    axis = axis_of(found[1:], found)
    assert axis.label == "minutes (the log gives no step)"
    assert [axis.at(one) for one in found[1:]] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert draw("0101-sft-aaaa", found, []).startswith(b"\x89PNG")


def test_most_losses_decide_the_axis_and_the_others_are_left_out():
    """A point without a step has no place among steps."""
    found = [*(point(step, 60.0 + step, 2.0) for step in range(5)), point(None, 70.0, 9.0)]
    axis = axis_of(found, found)
    assert (axis.label, axis.has(found[0]), axis.has(found[-1])) == ("step", True, False)
    assert len(draw("0101-sft-aaaa", found, [])) > 1000


def test_a_training_loss_by_another_name_is_drawn_where_nothing_is_called_loss():
    """A log that only has `train_loss` beside evaluations has a picture; one without any loss has none."""
    assert draw("0101-sft-aaaa", [point(1, 60.0, 2.0, "train_loss")], [])
    with pytest.raises(RunError, match="no loss"):
        draw("0101-sft-aaaa", [point(1, 60.0, 2.0, "accuracy")], [])


def curves(more=()):
    found = [point(step, 60.0 + 5 * step, 3.0 / step) for step in range(1, 13)]
    for name in ("learning_rate", "grad_norm", *more):
        found += [point(step, 60.0 + 5 * step, step / 10, name) for step in range(1, 13)]
    return found


def test_rate_norm_and_throughput_are_below_the_loss():
    """Tokens a second where they were measured, else the steps a minute by the times of the losses."""
    panels = panels_of(curves(["tokens_per_s"]))
    assert [panel.label for panel in panels] == ["loss", "learning rate", "gradient norm", "tokens a second"]
    panels = panels_of(curves())
    assert panels[-1].label == "steps a minute"
    assert panels[-1].ys == pytest.approx([12.0] * 11)


def test_the_pace_leaves_out_the_time_between_two_attempts():
    """A recovery is no slow step."""
    later = [Point(2, 0, step, 9000.0 + 5 * step, "loss", 0.2) for step in range(13, 25)]
    (_, *_, pace) = panels_of([*curves(), *later])
    assert pace.ys == pytest.approx([12.0] * 22)


def test_the_picture_has_a_title_whole_steps_and_the_cards():
    """Job, card and precision in the title; the axis below the loss counts steps."""
    cards = {
        name: [Point(1, 0, None, 60.0 + n, name, 40.0) for n in range(3)]
        for name in ("host/gpu0.use_percent", "host/gpu0.memory_gb")
    }
    figure = figure_of(
        panels_of(curves()), cards, "sft · TITAN RTX 24 GB · fp16 autocast + scaler\n261122-sft-w8q2zz"
    )
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["loss", "learning rate", "gradient norm", "steps a minute", "card use, %", "memory, GB"]
    assert figure.axes[0].get_title().startswith("sft · TITAN RTX 24 GB · fp16")
    figure.draw_without_rendering()
    ticks = [tick.get_text() for tick in figure.axes[3].get_xticklabels()]
    assert ticks
    assert all(tick.isdigit() for tick in ticks if tick)
    assert figure.axes[3].get_xlabel() == "step"
    assert figure.axes[4].get_xlabel() == "minutes"
