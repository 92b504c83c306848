"""A run in a terminal: lines that stay, and a live bar below them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launcher.cli.plain_view import PlainView
from launcher.cli.signals import cursor_back_on_stop, spinner
from launcher.runs.view import Result
from launcher.values.record import Event, RunState
from launcher.values.text import printable

ACCENT = "cyan"


class TerminalView(PlainView):
    """Lines that stay, and a live bar below them."""

    transfer_every_s = 0.0

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._drawn = ExitStack()

    def write(self, text: str, style: str = "") -> None:
        """Write one line, above the bar if it is shown."""
        line = Text(printable(text), style=style)
        if text.startswith("  ✓"):
            line.stylize(ACCENT, 2, 3)
        self._console.print(line, soft_wrap=True)

    @contextmanager
    def busy(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner instead of the bar."""
        self.close()
        with spinner(self._console, name, ACCENT) as status:
            yield lambda step: status.update(
                Text(printable(f"{name}: {step}"), no_wrap=True, overflow="ellipsis")
            )

    def begin(self, run: str, steps: int | None, events: list[Event]) -> None:
        """Begin the live bar."""
        super().begin(run, steps, events)
        bar = Live(get_renderable=self._bar, console=self._console, refresh_per_second=8, transient=True)
        self._drawn.enter_context(cursor_back_on_stop(self._console))
        self._drawn.enter_context(bar)

    def phase(self) -> None:
        """Do nothing: the bar shows the phase."""

    def metric(self, event: Event) -> None:
        """Show evaluations as lines; the bar shows the rest."""
        if "loss" not in event.values:
            super().metric(event)

    def end(self, run: str, state: RunState, result: Result) -> None:
        """End the bar and show the end."""
        self.close()
        super().end(run, state, result)

    def close(self) -> None:
        """End the bar, which shows the cursor again."""
        self._drawn.close()

    def _bar(self) -> Group:
        progress = self.progress
        share = (
            progress.phase_share if progress.phase else (progress.step or 0) / (progress.steps or math.inf)
        )
        row = Table.grid(padding=(0, 2))
        words = [progress.phase] if progress.phase else [progress.where(), *progress.words()]
        name = progress.run.split("-", 1)[-1].rpartition("-")[0]
        bar = ProgressBar(total=1.0, completed=share, width=26, complete_style=ACCENT, finished_style=ACCENT)
        row.add_row(
            Text(f"  {name}"), bar, Text(printable("  ".join(words)), no_wrap=True, overflow="ellipsis")
        )
        return Group(row)
