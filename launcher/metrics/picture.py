"""The curves of a run as a picture."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from launcher.errors import RunError
from launcher.metrics.curves import Point
from launcher.metrics.drawing_process import drawn
from launcher.metrics.host_figures import thinned
from launcher.metrics.panels import MOST, Panel, panels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_DRAWN = 300
SIZE = (8.0, 4.5)
MORE_HEIGHT = 1.5
"""The height of each panel below the loss, in inches."""
_CARD = re.compile(r"host/gpu[0-9]+\.(use_percent|memory_gb)")
_COLOURS = ("tab:orange", "tab:brown", "tab:cyan")


def draw(run: str, found: list[Point], figures: Iterable[Point], title: str = "") -> bytes:
    """Return a PNG of the loss and the evaluation loss over the steps, or over time if most losses have no step.

    Below are learning rate, gradient norm and throughput, if they were measured, and the use and the memory
    of the run's cards over time, if the host's `figures` contain them.

    A non-finite loss breaks the line and is marked at the bottom of the picture: it is never shown as a zero.
    Raises RunError without any loss.
    """
    panels = panels_of(found)
    if not panels:
        raise RunError(f"{run} has logged no loss yet\n  look   launch logs {run}")
    cards = thinned((point for point in figures if _CARD.fullmatch(point.name)), MAX_DRAWN)
    return drawn(_png, panels, cards, f"{title}\n{run}" if title else run)


def _png(panels: list[Panel], cards: dict[str, list[Point]], title: str) -> bytes:
    png = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about letters that the font lacks
        figure_of(panels, cards, title).savefig(png, format="png")
    return png.getvalue()


def figure_of(panels: list[Panel], cards: dict[str, list[Point]], title: str) -> Figure:
    """Return the figure: the loss, the other panels over the same axis, the cards over the minutes."""
    from matplotlib.figure import Figure  # takes 0.5 s and imports numpy
    from matplotlib.ticker import MaxNLocator

    more = len(panels) - 1 + bool(cards)
    figure = Figure(figsize=(SIZE[0], SIZE[1] + MORE_HEIGHT * more), dpi=120, layout="constrained")
    grid = figure.add_gridspec(1 + more, 1, height_ratios=(3, *[1] * more))
    loss = figure.add_subplot(grid[0])
    _draw_loss(loss, panels[0])
    loss.set_title(title, parse_math=False, fontsize=11)
    for number, panel in enumerate(panels[1:], 1):
        axes = figure.add_subplot(grid[number], sharex=loss)
        axes.plot(panel.xs, panel.ys, linewidth=1, color=_COLOURS[number - 1])
        axes.set_ylabel(panel.label, fontsize=9)
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.set_xlabel(panels[0].axis.label)
        axes.label_outer()
        if panels[0].axis.began is None:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.axes[-1].xaxis.set_tick_params(labelbottom=True)
    figure.axes[-1].set_xlabel(panels[0].axis.label)
    if cards:
        _draw_cards(figure.add_subplot(grid[more]), cards)
    return figure


def _draw_loss(axes: Axes, panel: Panel) -> None:
    axes.plot(panel.xs, panel.ys, linewidth=1.5, label="loss")
    if panel.dots:
        axes.plot(*zip(*panel.dots, strict=True), "o", markersize=4, label="held out")
    if panel.lost:
        axes.plot(
            panel.lost,
            [0.02] * len(panel.lost),
            "x",
            color="tab:red",
            transform=axes.get_xaxis_transform(),
            label="not finite",
        )
    if panel.is_log:
        axes.set_yscale("log")
    axes.set_ylabel("loss")
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
    axes.set_ylabel("card use, %", color="tab:green", fontsize=9)
    memory.set_ylabel("memory, GB", color="tab:purple", fontsize=9)
    sizes = [point.value for name in cards if name.endswith("memory_gb") for point in cards[name]]
    memory.set_ylim(0, 1.2 * max([1.0, *(size for size in sizes if math.isfinite(_finite(size)))]))
    axes.grid(alpha=0.3)


def _finite(value: float) -> float:
    return value if abs(value) < MOST else math.nan
