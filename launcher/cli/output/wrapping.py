"""Lines of text wrapped between words to the terminal's width. A pipe or file gets whole lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from launcher.base.text import printable
from launcher.cli.output import streams
from launcher.cli.output.say import complain, say

if TYPE_CHECKING:
    from rich.console import Console

LEAST = 20
"""Minimum width in cells of a text's continuation lines, whatever their indent."""
_COMMAND = re.compile(
    r"^(?P<words>.*?\S) {3,}(?P<command>(?:\d+ \* \* \* \* )?launch \S.*?)(?: {3,}(?P<more>.*))?$"
)
"""A text with a suggested command: `event   launch verb RUN     effect`. A cron schedule may precede the command."""


def say_wrapped(*lines: str, hang: int | None = None) -> None:
    """Print lines, wrapped. Continuation lines are indented by `hang` cells, by default two more than the first line."""
    say(*wrapped_lines(lines, terminal_width(), hang))


def complain_wrapped(*lines: str) -> None:
    """Print lines on standard error, as `say_wrapped` does on standard output."""
    complain("\n".join(wrapped_lines(lines, terminal_width(streams.console(stderr=True)))))


def wrapped_lines(lines: Iterable[str], width: int | None, hang: int | None = None) -> Iterator[str]:
    """Yield lines of at most `width` cells. Continuation lines are indented by `hang`, as in `say_wrapped`.

    A suggested command stays whole, so that it can be copied. If it does not fit, it gets a separate line of any length.
    """
    for line in lines:
        text = printable(line)
        indent = len(text) - len(text.lstrip()) + 2 if hang is None else hang
        indent = min(indent, max(0, (width or 0) - LEAST))
        first, *rest = _around_command(text[indent:], None if width is None else width - indent)
        yield text[:indent] + first
        yield from (f"{' ' * indent}{part}" for part in rest)


def terminal_width(console: Console | None = None) -> int | None:
    """Return the width in cells, by default of standard output; `None` if it is not a terminal."""
    if console is None and not streams.is_terminal():
        return None
    console = console or streams.console()
    return console.width if console.is_terminal else None


def cells(text: str) -> int:
    """Return a text's width in terminal cells."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # imported here: few texts need its tables

    return cell_len(text)


def _around_command(text: str, width: int | None) -> list[str]:
    """Return a text's lines as `wrapped` does, but keep a suggested command whole."""
    found = _COMMAND.match(text)
    if width is None or cells(text) <= width or found is None:
        return wrapped(text, width)
    *above, last = wrapped(found["words"], width)
    beside = f"{last}   {found['command']}"
    lines = [*above, *([beside] if cells(beside) <= width else [last, found["command"]])]
    return [*lines, *wrapped(found["more"], width)] if found["more"] else lines


def wrapped(text: str, width: int | None) -> list[str]:
    """Return a text's lines of at most `width` cells, broken between words where possible."""
    if width is None or cells(text) <= width:
        return [text]
    from rich.console import Console
    from rich.text import Text

    return [line.plain.rstrip() for line in Text(text).wrap(Console(), max(1, width))]
