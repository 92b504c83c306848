"""The loss curve as a picture."""

from __future__ import annotations

import io
import math
from pathlib import Path

from launcher.errors import RunError
from launcher.runs.curves import Point
from launcher.runs.whole_file import write_whole

LOG_FROM = 30.0
"""From this ratio of the largest to the smallest loss on, the axis is logarithmic."""
MOST = 1e100
"""A loss beyond this counts as not finite: an axis computes differences, which would overflow."""


def draw(run: str, found: list[Point], path: Path) -> None:
    """Write a PNG of the loss over the steps, evaluation beside it.

    Raises RunError without any loss, and OSError if the file cannot be written; an older picture is then kept.

    A non-finite loss breaks the line and is marked at the foot of the picture: it is never shown as a zero.
    """
    losses = [point for point in found if point.name == "loss" and point.rank == 0]
    if not losses:
        raise RunError(f"{run} has logged no loss yet\n  look   launch logs {run}")
    from matplotlib.figure import Figure  # takes 0.5 s and imports numpy

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot([p.step for p in losses], [_finite(p.value) for p in losses], linewidth=1.5, label="loss")
    held_out = [point for point in found if point.name == "eval_loss" and _is_finite(point.value)]
    if held_out:
        axes.plot(
            [p.step for p in held_out], [p.value for p in held_out], "o", markersize=4, label="held out"
        )
    lost = [point.step for point in losses if not _is_finite(point.value)]
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
    axes.set(xlabel="step", ylabel="loss", title=run)
    axes.grid(alpha=0.3)
    axes.legend()
    png = io.BytesIO()
    figure.savefig(png, format="png")
    write_whole(path, png.getvalue())


def _is_finite(value: float) -> bool:
    return abs(value) < MOST


def _finite(value: float) -> float:
    return value if _is_finite(value) else math.nan
