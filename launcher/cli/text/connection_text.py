"""The persistent connections, as `launch hosts` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.cli.output.say import say

if TYPE_CHECKING:
    from launcher.transport.persistent_connection import Closing, PersistentState


def show_held(connections: Sequence[PersistentState]) -> None:
    """Print the open persistent connections, and how long each stays open."""
    from launcher.cli.output.columns import Column, print_columns

    columns = (Column("CONNECTION", 6), Column("TO", 12, wraps=True), Column("HELD FOR"), Column("PROCESS"))
    say("")
    rows = [(one.host, one.about, _left(one), str(one.pid)) for one in connections]
    print_columns(columns, rows)
    say("  close them   launch hosts --close")


def show_closed(closed: Closing) -> None:
    """Print the connections that were closed, and those cancelled while they were being opened."""
    if not (closed.held or closed.opening):
        say("no connection is kept open")
    for host in closed.opening:
        say(f"{host}: the connection that was being opened for the next command is cancelled")
    for one in closed.held:
        say(f"{one.host}: its connection {_closing_words(one)}")


def _left(one: PersistentState) -> str:
    return f"{one.left_s:.0f} s" if one.users == 0 else "in use"


def _closing_words(one: PersistentState) -> str:
    return "is closed" if one.users == 0 else "is closed once the commands that use it have ended"
