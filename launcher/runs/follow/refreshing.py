"""Bring a run's local copy up to date, without waiting for later output."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from launcher.values.record import RunState, State, is_terminal

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.transport.client.host_client import HostClient

MAX_ROUNDS = 20
"""The maximum number of answers that are not full, i.e. below the size limit of one answer. An ended run needs fewer."""


def refresh(client: HostClient, local_copy: LocalCopy, most: float = math.inf) -> None:
    """Fetch the present output of a run, up to `most` bytes, without waiting for more.

    Output that a live run writes during the fetch is left: over a slow link the fetch might never finish.
    """
    local_copy.sync.load_cursors()
    size = rounds = 0
    while rounds < MAX_ROUNDS and size < most:
        news = local_copy.sync.apply(client.runs.read(local_copy.run, local_copy.sync.request()))
        size += news.size
        rounds += not news.is_full
        if news.is_all or (continues_by_itself(news.state) and not news.is_full):
            return


def continues_by_itself(state: RunState) -> bool:
    """Return whether a run in this state continues to write without user action."""
    return not is_terminal(state.state) and state.state not in (State.WAITING, State.INTERRUPTED)
