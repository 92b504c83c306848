"""Follow a run through its host's sessions: when one ends at its limit, this client starts the next."""

from __future__ import annotations

import time

from launcher.backends.runtimes import load
from launcher.copy.local_copy import LocalCopy
from launcher.errors import BadFileError, UnreachableError
from launcher.runs.follow.following import Watch, follow, no_watch, pause
from launcher.runs.follow.view import View
from launcher.runs.resume.recovering import RecoveryOutcome, recover_to_follow
from launcher.runs.run_client import Opening, open_client
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host
from launcher.values.record import Reason, RunState, State

ANOTHER_S = 1.0


def follow_sessions(
    host: Host,
    local_copy: LocalCopy,
    view: View,
    client: HostClient | None = None,
    *,
    pulls: bool = True,
    watch: Watch = no_watch,
    opening: Opening | None = None,
    is_seen: bool = True,
) -> RunState:
    """Follow a run as `follow` does, and recover it each time that its session has ended at the service's limit."""
    while True:
        state = follow(
            host, local_copy, view, client, pulls=pulls, watch=watch, opening=opening, is_seen=is_seen
        )
        if not _has_a_next(local_copy, state):
            return state
        client = _with_next_session(host, local_copy, view, opening)
        if client is None:
            return state


def _with_next_session(
    host: Host, local_copy: LocalCopy, view: View, opening: Opening | None
) -> HostClient | None:
    """Start the next session of a run; return the open host client, or `None` if the run waits.

    Reopens a lost link.
    """
    tries = 0
    while True:
        try:
            client = open_client(host, local_copy, opening)
            try:
                outcome = recover_to_follow(client, local_copy, view)
            except BaseException:
                client.close()
                raise
        except UnreachableError as error:
            tries += 1
            pause(view, error, tries)
            continue
        if outcome == RecoveryOutcome.WAITING:
            client.close()
            return None
        words = "its session has ended at its limit"
        if outcome == RecoveryOutcome.RECOVERED:
            view.note(f"{local_copy.run}: {words}, and the next one is starting")
        elif outcome == RecoveryOutcome.FAILED:
            view.note(f"{local_copy.run}: {words}, and it cannot continue in another one")
        else:  # another client has recovered it, or is about to
            time.sleep(ANOTHER_S)
        return client


def _has_a_next(local_copy: LocalCopy, state: RunState) -> bool:
    """Return whether a run was interrupted only by the end of its session."""
    is_interrupted = state.state == State.INTERRUPTED and state.reason == Reason.SESSION_LIMIT
    return is_interrupted and has_sessions(local_copy)


def has_sessions(local_copy: LocalCopy) -> bool:
    """Return whether the run's runtime has limited sessions, so that a client recovers the run; False without a plan."""
    try:
        return load(local_copy.whole_plan().runtime).has_sessions
    except BadFileError:
        return False
