"""A curve as lines of text, drawn in braille characters or in ASCII."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from launcher.cli.output.figures import value_text
from launcher.metrics.panels import Panel

if TYPE_CHECKING:
    from plotille import Figure

MARGIN = 13
"""Width of the vertical axis with its values, in cells."""
TICK = 10
"""Distance between two ticks of the horizontal axis, in cells."""
MAX_LINES = 16
_BLANK = "\u2800"
_ASCII = dict.fromkeys(range(0x2801, 0x2900), "*")


def chart(panel: Panel, width: int, height: int, *, is_ascii: bool) -> list[str]:
    """Return a panel as a chart of `height` lines plus its axes, at most `width` cells wide.

    Held-out values are drawn as `o`. At a non-finite value the line has a gap, with an `x` at the bottom.
    """
    from plotille import Figure  # imported here: `launch --help` starts without it

    label = panel.axis.label.partition(" (")[0]
    figure = Figure()
    figure.with_colors, figure.origin = False, False
    room = width - MARGIN - len(f"|-> ({label})")
    figure.width, figure.height = (
        max(1, room // TICK) * TICK,
        height,
    )  # a multiple of TICK: the last step has a tick
    figure.x_label, figure.y_label = label, panel.label
    scale, back = (math.log10, _ten_to) if panel.is_log else (_same, _same)
    figure.y_ticks_fkt = lambda value, _: f"{value_text(back(value)):>10}"
    figure.x_ticks_fkt = _places(panel)
    figure.set_x_limits(*_limits([*panel.xs, *(x for x, _ in panel.dots)], figure.width))
    finite = [scale(y) for y in (*panel.ys, *(y for _, y in panel.dots)) if math.isfinite(y)] or [0.0]
    low, high = _limits(finite, 500)
    figure.set_y_limits(low, high)
    for xs, ys in _pieces(panel):
        figure.plot(xs, list(map(scale, ys)))
    _mark(figure, [(x, scale(y)) for x, y in panel.dots], "o")
    _mark(figure, [(x, low) for x in panel.lost], "x")
    lines = [line.replace(_BLANK, " ").rstrip() for line in figure.show().splitlines()]
    words = [*(["o held out"] if panel.dots else []), *(["x not finite"] if panel.lost else [])]
    lines += [f"{' ' * MARGIN}{'   '.join(words)}"] if words else []
    return [line.translate(_ASCII)[:width] if is_ascii else line[:width] for line in lines]


def _pieces(panel: Panel) -> Iterator[tuple[list[float], list[float]]]:
    """Yield each stretch of consecutive finite values."""
    breaks = [-1, *(at for at, y in enumerate(panel.ys) if not math.isfinite(y)), len(panel.ys)]
    for before, after in pairwise(breaks):
        if after - before > 1:
            yield panel.xs[before + 1 : after], panel.ys[before + 1 : after]


def _mark(figure: Figure, points: list[tuple[float, float]], letter: str) -> None:
    if points:
        figure.scatter([x for x, _ in points], [y for _, y in points], marker=letter)


def _limits(values: list[float], places: int) -> tuple[float, float]:
    """Return two different limits for an axis. The upper limit is larger than every value: a canvas excludes it."""
    low, high = min(values), max(values)
    return (low, high + (high - low) / places) if high > low else (low - 0.5, high + 0.5)


def _places(panel: Panel) -> Callable[[float, float], str]:
    """Return a function that formats the ticks: whole steps, or times. It leaves a repeated text blank."""
    written, last = "", max([*panel.xs, *(x for x, _ in panel.dots)])

    def place(value: float, _: float) -> str:
        nonlocal written
        value = min(value, last)  # the axis ends just beyond the last value, see _limits
        before, written = written, f"{value:.0f}" if panel.axis.began is None else f"{value:.3g}"
        return f"{'' if written == before else written:<9}"

    return place


def _ten_to(exponent: float) -> float:
    return float(10.0**exponent)


def _same(value: float) -> float:
    return value
