"""Follow a run through the sessions of its place: where each ends at a limit, this client has the run go on."""

from __future__ import annotations

import time

from launcher.errors import UnreachableError
from launcher.hosts import Desk
from launcher.runs.control import known_summary
from launcher.runs.following import Watch, follow, no_watch, pause
from launcher.runs.mirror import Mirror
from launcher.runs.recovering import Outcome, RecoverRequest, recover_on
from launcher.runs.run_desk import open_desk
from launcher.runs.view import View
from launcher.runtimes import load
from launcher.values.host import Host
from launcher.values.record import Reason, RunState, State, is_terminal

ANOTHER_S = 1.0
"""How long to wait for another client that is about to have the run go on."""


def follow_sessions(
    host: Host, mirror: Mirror, view: View, desk: Desk | None, watch: Watch = no_watch
) -> RunState:
    """Follow a run as `follow` does, and go on with it each time that its session has ended at the place's limit.

    Another client may be faster: then what it has begun is followed.
    """
    losses = 0
    while True:
        state = follow(host, mirror, view, desk, watch=watch)
        if not _has_a_next(mirror, state):
            return state
        desk = None
        try:
            desk = open_desk(host, mirror)
            goes_on = _goes_on(desk, mirror, view)
        except UnreachableError as error:
            goes_on, losses = True, losses + 1
            pause(view, error, losses)
        except BaseException:
            if desk is not None:
                desk.close()
            raise
        else:
            losses = 0
        if not goes_on:
            if desk is not None:
                desk.close()
            return state


def _goes_on(desk: Desk, mirror: Mirror, view: View) -> bool:
    """Have a run go on whose session has ended; return whether it does, or another client sees to it."""
    if is_terminal(known_summary(desk, mirror.run).state):
        return True  # its end is to be shown
    recovery = recover_on(desk, mirror, RecoverRequest(), view)
    if recovery.outcome == Outcome.RECOVERED:
        words = "its session has ended at its limit; the next one goes on from its checkpoint"
        view.note(f"{mirror.run}: {words}")
    elif recovery.state == State.INTERRUPTED:
        time.sleep(ANOTHER_S)
    return recovery.state != State.WAITING


def _has_a_next(mirror: Mirror, state: RunState) -> bool:
    """Whether a run was interrupted only by the end of its session."""
    is_interrupted = state.state == State.INTERRUPTED and state.reason == Reason.SESSION_LIMIT
    return is_interrupted and load(mirror.whole_plan().runtime).has_sessions
