"""Follow a run through the sessions of its place: where each ends at a limit, this client has the run go on."""

from __future__ import annotations

from launcher.hosts import Desk
from launcher.runs.following import follow
from launcher.runs.mirror import Mirror
from launcher.runs.recovering import recover_to_follow
from launcher.runs.run_desk import open_desk
from launcher.runs.view import View
from launcher.runtimes import load
from launcher.values.host import Host
from launcher.values.record import Reason, RunState, State


def follow_sessions(host: Host, mirror: Mirror, view: View, desk: Desk | None) -> RunState:
    """Follow a run as `follow` does, and go on with it each time that its session has ended at the place's limit."""
    while True:
        state = follow(host, mirror, view, desk)
        if not _has_a_next(mirror, state):
            return state
        desk = open_desk(host, mirror)
        try:
            goes_on = recover_to_follow(desk, mirror, view)
        except BaseException:
            desk.close()
            raise
        if not goes_on:
            desk.close()
            return state
        view.note(
            f"{mirror.run}: its session has ended at its limit; the next one goes on from its checkpoint"
        )


def _has_a_next(mirror: Mirror, state: RunState) -> bool:
    """Whether a run was interrupted only by the end of its session."""
    is_interrupted = state.state == State.INTERRUPTED and state.reason == Reason.SESSION_LIMIT
    return is_interrupted and load(mirror.whole_plan().runtime).has_sessions
