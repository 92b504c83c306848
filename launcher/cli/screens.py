"""The view that fits: live in a terminal, plain lines, or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.text import Text

from launcher.cli import streams
from launcher.cli.figures import transfer_text
from launcher.cli.plain_view import PlainView, Stage
from launcher.cli.say import complain
from launcher.cli.signals import spinner
from launcher.runs.view import View
from launcher.values.text import printable


def make_view(as_json_lines: bool, *, is_quiet: bool = False) -> View:
    """Return the JSON view if requested, the live view if standard error is a terminal, else the plain one."""
    if as_json_lines:
        from launcher.cli.json_view import JsonView  # each view loads what only it needs

        return JsonView(is_quiet=is_quiet)
    console = streams.console(stderr=True)
    if not console.is_terminal:
        return PlainView(is_quiet=is_quiet)
    from launcher.cli.terminal_view import TerminalView

    return TerminalView(console, is_quiet=is_quiet)


@contextmanager
def make_stage(name: str) -> Iterator[Stage]:
    """Yield a stage that is shown on standard error while it lasts, and not when it is done."""
    console = streams.console(stderr=True)
    with spinner(console, name) as status:

        def show(text: str) -> None:
            line = f"{name}: {text}"
            if console.is_terminal:
                status.update(Text(printable(line), no_wrap=True, overflow="ellipsis"))
            else:
                complain(f"  {line}")

        yield Stage(show, lambda moved: show(transfer_text(moved)), 0.0 if console.is_terminal else 3.0)
