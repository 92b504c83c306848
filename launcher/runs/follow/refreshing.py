"""Bring a run's mirror up to date, without waiting for what comes later."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from launcher.values.record import RunState, State, is_terminal

if TYPE_CHECKING:
    from launcher.copy.mirror import Mirror
    from launcher.transport.client.desk import HostClient

MOST_ROUNDS = 20
"""Answers that hold all of a run that has ended, after which nothing new may come."""


def refresh(desk: HostClient, mirror: Mirror, most: float = math.inf) -> None:
    """Fetch what is new of a run by now, up to `most` bytes, without waiting for more.

    What a live run writes meanwhile is left: over a slow link there would always be something.
    """
    mirror.sync.load_cursors()
    size = rounds = 0
    while rounds < MOST_ROUNDS and size < most:
        news = mirror.sync.apply(desk.runs.read(mirror.run, mirror.sync.request()))
        size += news.size
        rounds += not news.is_full
        if news.is_all or (goes_on(news.state) and not news.is_full):
            return


def goes_on(state: RunState) -> bool:
    """Whether a run in this state writes more by itself."""
    return not is_terminal(state.state) and state.state not in (State.WAITING, State.INTERRUPTED)
