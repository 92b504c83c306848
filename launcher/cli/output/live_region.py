"""The live region below a run's lines in a terminal: a headline, and a progress bar with figures. It never wraps."""

from __future__ import annotations

import math

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launcher.base.text import printable
from launcher.cli.follow.progress import Figure, Progress
from launcher.cli.output.figures import clock_text
from launcher.values.record import PlanSummary

ACCENT = "cyan"
MARGIN = "  "
GAP = "  "
MIN_BAR = 10
"""The bar's minimum width in cells."""
BAR_STEP = 4
"""The bar's width in cells is a multiple of this, so that it does not change with each digit of a figure."""


def live_region(progress: Progress, plan: PlanSummary, width: int) -> Group:
    """Return the headline and the bar of a run, for a terminal of `width` cells."""
    return Group(
        Text(headline(progress, plan, width - 1), style="bold", no_wrap=True, overflow="ellipsis"),
        _bar(progress, width - 1),
    )


def headline(progress: Progress, plan: PlanSummary, room: int) -> str:
    """Return the run, host, card, attempt and elapsed time.

    In a narrow terminal, the card is dropped first, then the date and job in the run's id, then the host.
    """
    where = f" on {plan.host}" if plan.host else ""
    card = f"{plan.card}, rehearsed" if plan.card and plan.rehearsed else plan.card
    attempt = f"attempt {progress.attempt}" if progress.attempt is not None else None
    last = [*filter(None, [progress.purpose or attempt]), clock_text(progress.elapsed_s())]
    run, short = progress.run, progress.run.rpartition("-")[2]
    choices = ([f"{run}{where}", card], [f"{run}{where}"], [f"{short}{where}"], [short])
    lines = [" · ".join(filter(None, [*words, *last])) for words in choices]
    fitting = (line for line in lines if len(MARGIN + line) <= room)
    return printable(MARGIN + next(fitting, lines[-1]))


def _bar(progress: Progress, room: int) -> Table:
    if progress.phase:
        share, figures = progress.phase_share, [Figure(progress.phase, 9)]
    else:
        share, figures = (progress.step or 0) / (progress.steps or math.inf), progress.figures()
    text = fitting_text(figures, room - len(MARGIN + GAP) - MIN_BAR)
    cells = max(MIN_BAR, room - len(MARGIN + GAP + text))
    bar = ProgressBar(
        total=1.0,
        completed=share,
        width=cells - cells % BAR_STEP if cells > MIN_BAR else cells,
        complete_style=ACCENT,
        finished_style=ACCENT,
    )
    row = Table.grid(padding=(0, len(GAP), 0, 0))
    row.add_row(Text(""), bar, Text(text, no_wrap=True, overflow="ellipsis"))
    return row


def fitting_text(figures: list[Figure], room: int) -> str:
    """Return the figures as one line. If it exceeds `room` cells, the figures of the least weight are left out."""
    shown = list(figures)
    while len(shown) > 1 and len(_joined(shown)) > room:
        shown.remove(min(shown, key=lambda figure: figure.weight))
    return _joined(shown)


def _joined(figures: list[Figure]) -> str:
    return printable(GAP.join(figure.text for figure in figures))
