"""A list that is looked at again and again: redrawn in a terminal, printed anew in a pipe when it has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import typer
from rich.live import Live
from rich.text import Text

from launcher.base.text import printable
from launcher.cli.output import streams
from launcher.cli.output.say import complain, say
from launcher.cli.signals import cursor_back_on_stop
from launcher.errors import HostError

EVERY_S = 5.0
REDRAWN = 8
"""Times a second that lines which grow are drawn."""

Row = TypeVar("Row")


@contextmanager
def growing(lines: Callable[[int], list[str]]) -> Iterator[None]:
    """Show lines, for a terminal of a width, while they grow; they go away at the end. What is not a terminal gets none."""
    console = streams.console()
    if not console.is_terminal:
        yield
        return

    def drawn() -> Text:
        return Text("\n".join(map(printable, lines(console.width))), no_wrap=True, overflow="ellipsis")

    with (
        cursor_back_on_stop(console),
        Live(get_renderable=drawn, console=console, refresh_per_second=REDRAWN, transient=True),
    ):
        yield


def watch(
    look: Callable[[], list[Row]],
    table: Callable[[list[Row], int | None], list[str]],
    as_json: Callable[[list[Row]], str] | None,
) -> None:
    """Look every five seconds until Ctrl-C, which ends it with success. A host that does not answer is asked again.

    `table` returns the lines for rows in a width, `as_json` one line for them.
    """
    console = streams.console()
    try:
        if console.is_terminal and as_json is None:
            _redraw(look, table)
        else:
            _print_changes(look, as_json or (lambda rows: "\n".join(table(rows, None))))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _redraw(look: Callable[[], list[Row]], table: Callable[[list[Row], int | None], list[str]]) -> None:
    console = streams.console()
    with cursor_back_on_stop(console), Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                lines = table(look(), console.width)
            except HostError as error:
                lines = [*str(error).splitlines(), f"it is asked again every {EVERY_S:.0f} s"]
            text = "\n".join(map(printable, lines))
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            time.sleep(EVERY_S)


def _print_changes(look: Callable[[], list[Row]], text_of: Callable[[list[Row]], str]) -> None:
    shown = ""
    while True:
        try:
            text = text_of(look())
            if text != shown:
                say(*text.split("\n"))
            shown = text
        except HostError as error:
            complain(str(error))
        time.sleep(EVERY_S)
