"""Lines of text broken between words, in the width of the terminal. What is not a terminal gets them whole."""

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
"""Cells that a text has below itself, however far its first line is indented."""
_COMMAND = re.compile(
    r"^(?P<words>.*?\S) {3,}(?P<command>(?:\d+ \* \* \* \* )?launch \S.*?)(?: {3,}(?P<more>.*))?$"
)
"""A text that suggests a command, as `what happened   launch verb RUN     what that does`, or such a line for cron."""


def say_wrapped(*lines: str, hang: int | None = None) -> None:
    """Print lines. What goes on in the next line is indented by `hang` cells, else two more than the line."""
    say(*wrapped_lines(lines, terminal_width(), hang))


def complain_wrapped(*lines: str) -> None:
    """Print lines on standard error, as `say_wrapped` does on standard output."""
    complain("\n".join(wrapped_lines(lines, terminal_width(streams.console(stderr=True)))))


def wrapped_lines(lines: Iterable[str], width: int | None, hang: int | None = None) -> Iterator[str]:
    """Yield lines of at most `width` cells; what goes on in the next line is indented by `hang`, as in `say_wrapped`.

    A suggested command stays whole, to be copied: where it does not fit it has its own line, however long.
    """
    for line in lines:
        text = printable(line)
        indent = len(text) - len(text.lstrip()) + 2 if hang is None else hang
        indent = min(indent, max(0, (width or 0) - LEAST))
        first, *rest = _around_command(text[indent:], None if width is None else width - indent)
        yield text[:indent] + first
        yield from (f"{' ' * indent}{part}" for part in rest)


def terminal_width(console: Console | None = None) -> int | None:
    """Return the cells of a line, by default on standard output; `None` if that is no terminal, where lines have no end."""
    if console is None and not streams.is_terminal():
        return None
    console = console or streams.console()
    return console.width if console.is_terminal else None


def cells(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # loaded here because few texts need its tables

    return cell_len(text)


def _around_command(text: str, width: int | None) -> list[str]:
    """Return a text in lines as `wrapped` does, and a suggested command in it whole."""
    found = _COMMAND.match(text)
    if width is None or cells(text) <= width or found is None:
        return wrapped(text, width)
    *above, last = wrapped(found["words"], width)
    beside = f"{last}   {found['command']}"
    lines = [*above, *([beside] if cells(beside) <= width else [last, found["command"]])]
    return [*lines, *wrapped(found["more"], width)] if found["more"] else lines


def wrapped(text: str, width: int | None) -> list[str]:
    """Return a text in lines of at most `width` cells, broken between words where possible."""
    if width is None or cells(text) <= width:
        return [text]
    from rich.console import Console
    from rich.text import Text

    return [line.plain.rstrip() for line in Text(text).wrap(Console(), max(1, width))]
