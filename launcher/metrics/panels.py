"""The panels of a run, for the picture and the terminal: lines over the steps, or over time without steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from launcher.metrics.curves import Point

LOG_FROM = 30.0
"""The ratio of the largest to the smallest loss from which the axis is logarithmic."""
MOST = 1e100
"""A value beyond this counts as not finite: an axis computes differences, which would overflow."""
SHORTEST_PACE_S = 10.0
MIN_PACES = 8
MAX_PACES = 60
HELD_OUT = ("eval_loss", "val_loss", "valid_loss", "validation_loss")
_MORE = {
    "learning rate": ("learning_rate", "lr"),
    "gradient norm": ("grad_norm", "gradient_norm", "grad norm"),
    "tokens a second": ("tokens_per_s", "tokens_per_second", "tok/s"),
}
"""Panels below the loss, and the names that scripts use for their values."""


class Panel(NamedTuple):
    """One line with its dots, over `xs`. A value that is not finite is NaN, and breaks the line.

    `dots` are single points beside the line, here of evaluations.
    """

    label: str
    xs: list[float]
    ys: list[float]
    dots: list[tuple[float, float]]
    axis: Axis

    @property
    def is_log(self) -> bool:
        """Whether the values are all positive and range so widely that they need a logarithmic axis."""
        finite = [value for value in (*self.ys, *(y for _, y in self.dots)) if math.isfinite(value)]
        return bool(finite) and min(finite) > 0 and max(finite) > LOG_FROM * min(finite)

    @property
    def lost(self) -> list[float]:
        """The places of values that are not finite."""
        return [x for x, y in zip(self.xs, self.ys, strict=True) if not math.isfinite(y)]


class Axis(NamedTuple):
    """The horizontal axis: steps, or the minutes since `began` if the log gives no steps."""

    label: str
    began: float | None

    def has(self, point: Point) -> bool:
        """Whether a point has a place on this axis."""
        return self.began is not None or point.step is not None

    def at(self, point: Point) -> float:
        """Return the place of a point on the axis."""
        if self.began is not None:
            return (point.time - self.began) / 60
        return point.step or 0


def panels_of(found: Sequence[Point]) -> list[Panel]:
    """Return the loss with its evaluations, then learning rate, gradient norm and throughput, if any.

    Points that do not fit the axis are left out; its label shows the number of losses left out. Empty without
    any loss.
    """
    losses, held_out = _losses(found), [p for p in found if p.name in HELD_OUT and _is_finite(p.value)]
    if not losses:
        return []
    axis = axis_of([*losses, *held_out], found)
    missing = sum(not axis.has(point) for point in losses)
    if missing:
        axis = axis._replace(label=f"{axis.label} (losses without a step, not shown: {missing})")
    dots = [(axis.at(point), point.value) for point in held_out if axis.has(point)]
    panels = [panel_of("loss", losses, axis)._replace(dots=dots)]
    for label, names in _MORE.items():
        name = next((name for name in names if any(point.name == name for point in found)), None)
        panels.append(panel_of(label, [p for p in found if p.name == name and p.rank == 0], axis))
    if not panels[-1].xs:
        panels[-1] = _pace(losses, axis)
    return [panels[0], *(panel for panel in panels[1:] if len(panel.xs) > 1)]


def axis_of(shown: Sequence[Point], found: Sequence[Point]) -> Axis:
    """Return the axis that most of the shown points fit."""
    with_step = sum(point.step is not None for point in shown)
    if 2 * with_step >= len(shown):
        return Axis("step", None)
    return Axis("minutes (the log gives no step)", min(point.time for point in found))


def _losses(found: Sequence[Point]) -> list[Point]:
    """Return the training losses: those named `train_loss` only if none is named `loss`."""
    name = "loss" if any(point.name == "loss" for point in found) else "train_loss"
    return [point for point in found if point.name == name and point.rank == 0]


def panel_of(label: str, points: Sequence[Point], axis: Axis) -> Panel:
    """Return the line of the points that have a place on an axis."""
    drawn = [point for point in points if axis.has(point)]
    values = [point.value if _is_finite(point.value) else math.nan for point in drawn]
    return Panel(label, [axis.at(point) for point in drawn], values, [], axis)


def _pace(losses: Sequence[Point], axis: Axis) -> Panel:
    """Return the steps per minute from the times of the losses, as means over parts of the run; empty for a short run."""
    panel = Panel("steps a minute", [], [], [], axis)
    points = [point for point in losses if point.step is not None]
    if axis.began is not None or len(points) < MIN_PACES:
        return panel
    if points[-1].time - points[0].time < SHORTEST_PACE_S:
        return panel
    stride = max(1, len(points) // MAX_PACES)
    kept = points[::stride]
    for before, after in pairwise(kept):
        passed_s = after.time - before.time
        if after.attempt == before.attempt and passed_s > 0:
            panel.xs.append(axis.at(after))
            panel.ys.append(60 * (axis.at(after) - axis.at(before)) / passed_s)
    return panel


def _is_finite(value: float) -> bool:
    return abs(value) < MOST
