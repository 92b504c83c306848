"""What waits for the next command, as `launch hosts` shows it: connections that are held, and processes that stand by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.cli.say import say

if TYPE_CHECKING:
    from launcher.cli.json_shapes import HeldRow, StandbyRow
    from launcher.hosts.held import Closing, HeldState


def show_held(connections: Sequence[HeldState], standbys: Sequence[HeldState]) -> None:
    """Print which connections are held, and which processes stand by, and for how long."""
    from launcher.cli.columns import Column, print_columns

    columns = (Column("CONNECTION", 6), Column("TO", 12, wraps=True), Column("HELD FOR"), Column("PROCESS"))
    say("")
    rows = [(one.host, one.about, _left(one), str(one.pid)) for one in connections]
    rows += [("-", "stands by for the next command", _left(one), str(one.pid)) for one in standbys]
    print_columns(columns, rows)
    say("  close them   launch hosts --close")


def show_closed(closed: Closing) -> None:
    """Print which connections were closed, and which were given up before they were held."""
    if not (closed.held or closed.opening or closed.standbys):
        say("no connection is held")
    for host in closed.opening:
        say(f"{host}: the connection that was being made for the next command is given up")
    for one in closed.held:
        say(f"{one.host}: its connection {_fate(one)}")
    for one in closed.standbys:
        say(
            "the process that stood by for the next command has ended"
            if one.users == 0
            else "the process that stands by takes no more commands, and ends with those that it runs"
        )


def held_row(one: HeldState) -> HeldRow:
    """Return a connection as JSON shows it."""
    from launcher.cli.json_shapes import HeldRow

    return HeldRow(**one._asdict())


def standby_row(one: HeldState) -> StandbyRow:
    """Return a process that stands by as JSON shows it."""
    from launcher.cli.json_shapes import StandbyRow

    return StandbyRow(left_s=one.left_s, users=one.users, pid=one.pid)


def _left(one: HeldState) -> str:
    return f"{one.left_s:.0f} s" if one.users == 0 else "in use"


def _fate(one: HeldState) -> str:
    return "is closed" if one.users == 0 else "is closed once the commands that use it have ended"
