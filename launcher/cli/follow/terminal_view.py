"""The view of a run in a terminal: permanent lines, and a live bar below them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from launcher.base.text import printable
from launcher.cli.follow.idle_notice import QUIET_S
from launcher.cli.follow.link_loss import LinkLoss
from launcher.cli.follow.plain_view import PlainView
from launcher.cli.output.figures import clock_text
from launcher.cli.output.line_throttle import LineThrottle
from launcher.cli.output.live_region import ACCENT, live_region
from launcher.cli.output.wrapping import wrapped_lines
from launcher.cli.signals import cursor_back_on_stop, spinner
from launcher.cli.text.log_text import readable
from launcher.copy.printed_lines import Printed
from launcher.copy.record_sync import News
from launcher.errors import HostError
from launcher.metrics.curves import numbers
from launcher.runs.follow.view import Result
from launcher.values.record import Event, PlanSummary, RunState, Summary

CLOCK_AFTER_S = 3.0
BELL_AFTER_S = 10.0


class _Work:
    """The current step of a stage and its elapsed time. The spinner redraws it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._step = ""
        self._began_s = time.monotonic()

    def show(self, step: str) -> None:
        """Set the current step."""
        self._step = step

    def __rich__(self) -> Text:
        """Return the line to draw."""
        words = [f"{self._name:<10}"]
        elapsed_s = time.monotonic() - self._began_s
        if elapsed_s >= CLOCK_AFTER_S:
            words.append(clock_text(elapsed_s))
        return Text(printable("  ".join([*words, self._step])), no_wrap=True, overflow="ellipsis")


class TerminalView(PlainView):
    """Prints permanent lines, and draws a live bar below them.

    The training's output goes to standard output. If that is the terminal too, it is thinned and printed above the bar.
    """

    transfer_every_s = 0.0

    def __init__(self, console: Console, *, is_quiet: bool = False) -> None:
        super().__init__(is_quiet=is_quiet)
        self._console = console
        self._drawn = ExitStack()
        self._prints_above = sys.stdout.isatty()
        self._thinning = LineThrottle()
        self._unfinished = ""
        self._is_drawn = False
        self._began_s = time.monotonic()

    def write(self, text: str, style: str = "") -> None:
        """Write one line, above the bar if it is shown."""
        line = Text(printable(text), style=style)
        if text.startswith("  ✓"):
            line.stylize(ACCENT, 2, 3)
        self._console.print(line, soft_wrap=True)

    def write_wrapped(self, text: str, style: str = "") -> None:
        """Write a text, wrapped to the terminal's width."""
        for line in wrapped_lines([text], self._console.width):
            self.write(line, style)

    @contextmanager
    def busy(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show a spinner instead of the bar."""
        self.close()
        work = _Work(name)
        with spinner(self._console, work, ACCENT):
            yield work.show

    def ahead(self, summary: Summary, plan: PlanSummary) -> None:
        """Start the live region with the run's current step and loss."""
        super().ahead(summary, plan)
        self.progress.hold(summary.step, numbers({"loss": summary.loss}))
        self._draw()

    def begin(self, run: str, plan: PlanSummary, events: list[Event]) -> None:
        """Start the live region."""
        super().begin(run, plan, events)
        self._draw()

    def _draw(self) -> None:
        if self.is_quiet or self._is_drawn:
            return
        self._is_drawn = True
        bar = Live(
            get_renderable=self._below,
            console=self._console,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=self._prints_above,
        )
        self._drawn.enter_context(cursor_back_on_stop(self._console))
        self._drawn.enter_context(bar)

    def news(self, news: News) -> None:
        """Show an answer's events and lines. An unfinished line is shown above the bar until it is complete."""
        super().news(news)
        self._write_printed(self._thinning.take([], self._all_lines()))
        self._unfinished = readable(news.unfinished)

    def hear(self, news: News) -> None:
        """Check an answer for news. After a long time without any, a line above the bar shows a notice."""
        self.silence.hear(news)

    def printed(self, printed: Printed, text: str) -> None:
        """Show complete printed lines above the bar."""
        if not self._prints_above:
            super().printed(printed, text)
            return
        self._write_printed(self._thinning.take(text.split("\n"), self._all_lines()))

    def phase(self) -> None:
        """Do nothing: the bar shows the phase."""

    def metric(self, event: Event) -> None:
        """Show evaluations as lines; the bar shows the rest."""
        if "loss" not in event.values:
            super().metric(event)

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Show the loss of the link: in a live line above the bar if that is drawn, else as a note."""
        if self._is_drawn:
            self.link_loss = self.link_loss or LinkLoss()
            self.link_loss.tried(error, tries, wait_s)
        else:
            super().lost(error, tries, wait_s)

    def end(self, run: str, state: RunState, result: Result) -> None:
        """Remove the bar and show the run's end. Ring the bell if the view has lasted 10 s or more."""
        self.close()
        super().end(run, state, result)
        if time.monotonic() - self._began_s >= BELL_AFTER_S:
            self._console.bell()

    def close(self) -> None:
        """Remove the bar. The cursor appears again."""
        self._write_printed(self._thinning.release(self._all_lines()))
        self._is_drawn = False
        self._drawn.close()

    def _write_printed(self, lines: list[str]) -> None:
        if lines:
            self._console.print(Text("\n".join(map(printable, lines))), soft_wrap=True)

    def _all_lines(self) -> str:
        return f"launch logs {self.progress.run.rpartition('-')[2]}"

    def _below(self) -> Group:
        """Return the live region: held lines, the unfinished line, a notice about link or silence, and the bar."""
        lines = [*self._thinning.pending(self._all_lines()), *filter(None, [self._unfinished])]
        if self.link_loss is not None:
            lines.append(f"  · {self.link_loss.text()}")
        elif self.silence.seconds >= QUIET_S:
            lines.append(f"  · {self.silence.words()}")
        shown = [Text(printable(line), style="dim", no_wrap=True, overflow="ellipsis") for line in lines]
        return Group(*shown, live_region(self.progress, self.plan, self._console.width))
