"""The loss curve as a picture."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import RunError
from launcher.runs.curves import Point
from launcher.runs.host_figures import thinned
from launcher.runs.whole_file import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG_FROM = 30.0
"""From this ratio of the largest to the smallest loss on, the axis is logarithmic."""
MOST = 1e100
"""A loss beyond this counts as not finite: an axis computes differences, which would overflow."""
MOST_DRAWN = 300
_CARD = re.compile(r"host/gpu[0-9]+\.(use_percent|memory_gb)")
_HELD_OUT = ("eval_loss", "val_loss", "valid_loss", "validation_loss")


def draw(run: str, found: list[Point], figures: Iterable[Point], path: Path) -> None:
    """Write a PNG of the loss over the steps, evaluation beside it; over the time if most losses have no step.

    Points that do not fit the axis are left out, and the picture says how many. Below it are the use and the memory of
    the run's cards over the time, if `figures`, the host's own, have them.

    Raises RunError without any loss, and OSError if the file cannot be written; an older picture is then kept.

    A non-finite loss breaks the line and is marked at the foot of the picture: it is never shown as a zero.
    """
    if not _losses_of(found):
        raise RunError(f"{run} has logged no loss yet\n  look   launch logs {run}")
    from matplotlib.figure import Figure  # takes 0.5 s and imports numpy

    cards = thinned((point for point in figures if _CARD.fullmatch(point.name)), MOST_DRAWN)
    figure = Figure(figsize=(8, 6 if cards else 4.5), dpi=120, layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(3, 1)) if cards else figure.add_gridspec(1, 1)
    _draw_losses(figure.add_subplot(grid[0]), run, found)
    if cards:
        _draw_cards(figure.add_subplot(grid[1]), cards)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    write_whole(path, png.getvalue())


def _losses_of(found: list[Point]) -> list[Point]:
    names = _losses(found)
    return [point for point in found if point.name in names and point.rank == 0]


def _draw_losses(axes: Axes, run: str, found: list[Point]) -> None:
    losses = _losses_of(found)
    held_out = [point for point in found if point.name in _HELD_OUT and _is_finite(point.value)]
    axis = _axis([*losses, *held_out], found)
    drawn, held_out = [p for p in losses if axis.has(p)], [p for p in held_out if axis.has(p)]
    missing = len(losses) - len(drawn)
    axes.plot([axis.at(p) for p in drawn], [_finite(p.value) for p in drawn], linewidth=1.5, label="loss")
    if held_out:
        axes.plot(
            [axis.at(p) for p in held_out], [p.value for p in held_out], "o", markersize=4, label="held out"
        )
    lost = [axis.at(point) for point in drawn if not _is_finite(point.value)]
    if lost:
        axes.plot(
            lost,
            [0.02] * len(lost),
            "x",
            color="tab:red",
            transform=axes.get_xaxis_transform(),
            label="not finite",
        )
    positive = [p.value for p in (*losses, *held_out) if _is_finite(p.value)]
    if positive and min(positive) > 0 and max(positive) > LOG_FROM * min(positive):
        axes.set_yscale("log")
    label = axis.label + (f" (losses without a step, not shown: {missing})" if missing else "")
    axes.set(xlabel=label, ylabel="loss", title=run)
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_cards(axes: Axes, cards: dict[str, list[Point]]) -> None:
    """Draw the use and the memory of cards over the minutes since the first figure, a line for each card."""
    began = min(series[0].time for series in cards.values())
    memory = axes.twinx()
    for ending, side, color in (("use_percent", axes, "tab:green"), ("memory_gb", memory, "tab:purple")):
        for series in (cards[name] for name in sorted(cards) if name.endswith(ending)):
            times = [(point.time - began) / 60 for point in series]
            side.plot(times, [_finite(p.value) for p in series], linewidth=1, color=color)
    axes.set(xlabel="minutes", ylim=(0, 105))
    axes.set_ylabel("card use, %", color="tab:green")
    memory.set_ylabel("memory, GB", color="tab:purple")
    sizes = [point.value for name in cards if name.endswith("memory_gb") for point in cards[name]]
    memory.set_ylim(0, 1.2 * max([1.0, *filter(_is_finite, sizes)]))
    axes.grid(alpha=0.3)


class _Axis(NamedTuple):
    """The horizontal axis: steps, or the minutes since `began` where the log gives no steps."""

    label: str
    began: float | None

    def has(self, point: Point) -> bool:
        """Whether a point has a place on this axis."""
        return self.began is not None or point.step is not None

    def at(self, point: Point) -> float:
        """Return the place of a point."""
        if self.began is not None:
            return (point.time - self.began) / 60
        return point.step or 0


def _axis(shown: list[Point], found: list[Point]) -> _Axis:
    with_step = sum(point.step is not None for point in shown)
    if 2 * with_step >= len(shown):
        return _Axis("step", None)
    return _Axis("minutes (the log gives no step)", min(point.time for point in found))


def _losses(found: list[Point]) -> frozenset[str]:
    """Return the name of the training loss, `train_loss` only where nothing is called `loss`."""
    return frozenset({"loss"} if any(point.name == "loss" for point in found) else {"train_loss"})


def _is_finite(value: float) -> bool:
    return abs(value) < MOST


def _finite(value: float) -> float:
    return value if _is_finite(value) else math.nan
