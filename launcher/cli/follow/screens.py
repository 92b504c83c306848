"""The choice of a view: live in a terminal, plain lines in a pipe, or JSON."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.base.text import printable
from launcher.cli.follow.plain_view import PlainStage, PlainView
from launcher.cli.output import streams
from launcher.cli.output.figures import transfer_text
from launcher.cli.output.say import complain
from launcher.cli.signals import spinner
from launcher.runs.follow.view import View

COUNTED_S = 3.0
"""Seconds between two lines of progress in a pipe that differ only in their figures."""
_FIGURES = re.compile(r"[\d.,]+")


class _PipedProgress:
    """Progress for a pipe: a line for each new step, and a line every `COUNTED_S` seconds for a step whose figures change."""

    def __init__(self) -> None:
        self._last, self._at = "", 0.0

    def show(self, line: str) -> None:
        now = time.monotonic()
        counts_on = _FIGURES.sub("", line) == _FIGURES.sub("", self._last)
        if line == self._last or (counts_on and now - self._at < COUNTED_S):
            return
        self._last, self._at = line, now
        complain(f"  {line}")


def make_view(as_json_lines: bool, *, is_quiet: bool = False) -> View:
    """Return the JSON view if requested, the live view if standard error is a terminal, else the plain one."""
    if as_json_lines:
        from launcher.cli.follow.json_view import JsonView  # imported here: each view has its own imports

        return JsonView(is_quiet=is_quiet)
    if not streams.is_terminal(stderr=True):
        return PlainView(is_quiet=is_quiet)  # it does not need rich
    from launcher.cli.follow.terminal_view import TerminalView

    return TerminalView(streams.console(stderr=True), is_quiet=is_quiet)


@contextmanager
def make_stage(name: str) -> Iterator[PlainStage]:
    """Yield a stage whose progress is shown on standard error. It leaves no line when it is done."""
    from rich.text import Text

    console, lines = streams.console(stderr=True), _PipedProgress()
    with spinner(console, name) as status:

        def show(text: str) -> None:
            line = f"{name}: {text}"
            if console.is_terminal:
                status.update(Text(printable(line), no_wrap=True, overflow="ellipsis"))
            else:
                lines.show(line)

        yield PlainStage(show, lambda moved: show(transfer_text(moved)), 0.0 if console.is_terminal else 3.0)
