"""Following a run from the terminal: Ctrl-C detaches, the end decides the exit code."""

from __future__ import annotations

import contextlib

import typer

from launcher.cli.signals import Terminated
from launcher.hosts import Agent
from launcher.runs.following import finish, follow
from launcher.runs.mirror import Mirror
from launcher.runs.view import View
from launcher.spec.host import Host
from launcher.spec.record import State

_EXIT: dict[str, int] = {State.SUCCEEDED: 0, State.WAITING: 5, State.INTERRUPTED: 5}


def follow_to_end(host: Host, mirror: Mirror, view: View, agent: Agent | None) -> None:
    """Follow a run to its end and leave with its exit code; Ctrl-C detaches and leaves with 0, SIGTERM with 143."""
    with contextlib.closing(view):
        try:
            state = follow(host, mirror, view, agent)
        except (KeyboardInterrupt, Terminated) as error:
            view.note(
                f"detached; the run goes on.   launch attach {mirror.short} · launch stop {mirror.short}"
            )
            raise typer.Exit(Terminated.exit_code if isinstance(error, Terminated) else 0) from None
        finish(mirror, state, view)
    code = _EXIT.get(state.get("state", ""), 1)
    if code:
        raise typer.Exit(code)
