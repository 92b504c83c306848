"""The curves of several runs in one picture: a panel for each measure, a colour for each run."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.base.text import printable
from launcher.copy.run_files import RunFiles
from launcher.errors import RunError
from launcher.metrics.curves import Point
from launcher.metrics.drawing_process import drawn
from launcher.metrics.metric_results import goal_of
from launcher.metrics.panels import HELD_OUT, Axis, Panel, axis_of, panel_of, panels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 8
NOT_FINITE = "becomes NaN or infinite"
MAX_POINTS = 1000
"""The largest number of drawn points per line: a picture has no more columns."""
MADE_BY = "launch compare"
"""The software name in a picture's metadata: a picture with this name may be replaced by a newer one."""
_HEAD_BYTES = 400
_LOSSES = ("loss", "train_loss", *HELD_OUT)
_SIZE = (9.0, 4.5)
_MORE_HEIGHT = 1.6
_DISTINCT_COLOURS = 10
"""The largest number of runs with distinct colours; more runs get a colour scale and thinner lines."""
_NAMES_A_COLUMN = 40
_COLUMN_WIDTH = 2.2
_MAX_LETTERS = 40


class Curves(NamedTuple):
    """The lines of a run, the loss first, over the steps, or over the minutes if its log gives no steps."""

    panels: tuple[Panel, ...]

    @property
    def has_steps(self) -> bool:
        """Whether the lines are over the steps."""
        return all(panel.axis.began is None for panel in self.panels)


class ComparedLine(NamedTuple):
    """The curves of a run, and its name in the legend."""

    label: str
    curves: Curves


def curves_of(found: Sequence[Point], *, over_time: bool = False) -> Curves:
    """Return the curves of a run: loss and evaluations, other quality measures, rate, norm and throughput.

    A run without any loss gets all of its metrics.
    """
    if over_time:
        found = [point._replace(step=None) for point in found]
    panels = panels_of(found)
    others = [point for point in found if point.name not in _LOSSES and (not panels or goal_of(point.name))]
    if others:
        axis = panels[0].axis if panels else axis_of(others, found)
        names = dict.fromkeys(point.name for point in others)
        more = [panel_of(name, [p for p in others if p.name == name and p.rank == 0], axis) for name in names]
        panels = [*panels[:1], *(panel for panel in more if panel.xs), *panels[1:]]
    return Curves(tuple(_thinned(panel) for panel in panels))


def _thinned(panel: Panel) -> Panel:
    """Return a line with fewer points: each part keeps its smallest, its largest and its non-finite values."""
    size = math.ceil(2 * len(panel.xs) / MAX_POINTS)
    if size <= 2:
        return panel
    kept: set[int] = set()
    for start in range(0, len(panel.xs), size):
        part = range(start, min(start + size, len(panel.xs)))
        finite = [number for number in part if math.isfinite(panel.ys[number])]
        kept.update(number for number in part if len(finite) < len(part) and number not in finite)
        if finite:
            kept |= {min(finite, key=panel.ys.__getitem__), max(finite, key=panel.ys.__getitem__)}
    numbers = sorted({*kept, len(panel.xs) - 1})
    return panel._replace(xs=[panel.xs[n] for n in numbers], ys=[panel.ys[n] for n in numbers])


def draw_curves(lines: Sequence[ComparedLine], title: str) -> bytes:
    """Return a PNG of the curves of runs, each of which has some. Do not mix curves over steps with curves over time.

    Raises RunError if drawing fails.
    """
    return drawn(_png, lines, title)


def _png(lines: Sequence[ComparedLine], title: str) -> bytes:
    png = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about letters that the font lacks
        figure_of(lines, title).savefig(
            png, format="png", metadata={"Software": MADE_BY}, bbox_inches="tight"
        )
    return png.getvalue()


def check_free(files: RunFiles, name: str) -> None:
    """Raise RunError if this file exists in a folder and is unreadable, or was not drawn by `draw_curves`."""
    path = files.folder / name
    try:
        with files.open(name) as file:
            head = file.read(_HEAD_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(
            f"{path}: {error.strerror}\n  another place   launch compare RUN RUN -o FILE.png"
        ) from error
    if MADE_BY.encode() not in head:
        raise RunError(
            f"{path} exists and was not drawn by launch compare\n  another place   launch compare RUN RUN -o FILE.png"
        )


def figure_of(lines: Sequence[ComparedLine], title: str) -> Figure:
    """Return the figure: the measures below each other over one axis, and a legend beside them."""
    from matplotlib.figure import Figure  # takes 0.5 s and imports numpy
    from matplotlib.ticker import MaxNLocator

    labels = [*dict.fromkeys(panel.label for line in lines for panel in line.curves.panels)][:MAX_PANELS]
    height = _SIZE[1] + _MORE_HEIGHT * (len(labels) - 1)
    figure = Figure(
        figsize=(_SIZE[0] + _COLUMN_WIDTH * (_columns(lines) - 1), height), dpi=120, layout="constrained"
    )
    grid = figure.add_gridspec(len(labels), 1, height_ratios=(3, *[1] * (len(labels) - 1)))
    for number, label in enumerate(labels):
        above = figure.axes[0] if number else None
        _draw_panel(figure.add_subplot(grid[number], sharex=above), label, lines)
    figure.axes[0].set_title(title, parse_math=False, fontsize=11)
    axis = lines[0].curves.panels[0].axis
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.set_xlabel(_axis_label(axis))
        axes.label_outer()
        if axis.began is None:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.axes[-1].xaxis.set_tick_params(labelbottom=True)
    figure.axes[-1].set_xlabel(_axis_label(axis))
    _add_legend(figure, lines)
    return figure


def _columns(lines: Sequence[ComparedLine]) -> int:
    """Return the columns of the legend."""
    return math.ceil(len(lines) / _NAMES_A_COLUMN)


def _axis_label(axis: Axis) -> str:
    return "step" if axis.began is None else "minutes since the run began"


def _draw_panel(axes: Axes, label: str, lines: Sequence[ComparedLine]) -> None:
    """Draw one measure of all runs. Non-finite values break a line; a mark at the bottom shows where they begin."""
    drawn = [
        (number, panel)
        for number, line in enumerate(lines)
        for panel in line.curves.panels
        if panel.label == label
    ]
    is_crowded = len(lines) > _DISTINCT_COLOURS
    for number, panel in drawn:
        style = {"color": _colour(number, len(lines)), "alpha": 0.7 if is_crowded else 0.9}
        marker = "o" if len(panel.xs) == 1 else ""
        axes.plot(
            panel.xs, panel.ys, linewidth=0.7 if is_crowded else 1.2, marker=marker, markersize=3, **style
        )
        if panel.dots:
            dots = "--" if is_crowded and len(panel.dots) > 1 else "o--"
            axes.plot(*zip(*panel.dots, strict=True), dots, markersize=3, linewidth=0.6, **style)
        if starts := _lost_from(panel):
            foot = axes.get_xaxis_transform()
            axes.plot(starts, [0.03] * len(starts), "x", transform=foot, **style)
    together = drawn[0][1]._replace(
        ys=[y for _, panel in drawn for y in panel.ys], dots=[dot for _, panel in drawn for dot in panel.dots]
    )
    if together.is_log:
        axes.set_yscale("log")
    has_dots = any(panel.dots for _, panel in drawn)
    axes.set_ylabel(
        printable(f"{label}, held out dashed" if has_dots else label), fontsize=9, parse_math=False
    )


def _lost_from(panel: Panel) -> list[float]:
    """Return the start of each stretch of values that are not finite."""
    are_lost = [not math.isfinite(y) for y in panel.ys]
    before = [False, *are_lost]
    return [x for x, is_lost, was in zip(panel.xs, are_lost, before, strict=False) if is_lost and not was]


def _colour(number: int, count: int) -> Any:
    """Return the colour of a run: one of ten distinct ones, or one of a scale for more runs."""
    import matplotlib as mpl

    return (
        f"C{number}"
        if count <= _DISTINCT_COLOURS
        else mpl.colormaps["turbo"](0.05 + 0.9 * number / (count - 1))
    )


def _add_legend(figure: Figure, lines: Sequence[ComparedLine]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=_colour(number, len(lines)),
            label=printable(line.label)[:_MAX_LETTERS].replace("$", r"\$"),
        )
        for number, line in enumerate(lines)
    ]
    if any(_lost_from(panel) for line in lines for panel in line.curves.panels):
        handles.append(Line2D([], [], color="grey", marker="x", linestyle="", label=NOT_FINITE))
    figure.legend(
        handles=handles,
        loc="outside right upper",
        fontsize=8 if len(lines) <= 20 else 6,
        ncols=_columns(lines),
        frameon=False,
    )
