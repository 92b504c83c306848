"""A table that is read repeatedly: redrawn in a terminal, and printed again in a pipe when it changes."""

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
"""Redraws per second of growing lines."""

Row = TypeVar("Row")


@contextmanager
def growing(lines: Callable[[int], list[str]]) -> Iterator[None]:
    """Show growing lines in a terminal during a block, and remove them at its end. Show nothing elsewhere.

    `lines` returns the lines for a width in cells.
    """
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
    """Call `look` every five seconds and show its rows, until Ctrl-C, which exits with 0. Retry after a HostError.

    `table` returns the lines for rows and a width, `as_json` one line of JSON.
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
                lines = [*str(error).splitlines(), f"the host is asked again every {EVERY_S:.0f} s"]
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
