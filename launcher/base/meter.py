"""The progress and speed of a transfer of bytes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

SHOWN_EVERY_S = 0.1
RATE_OVER = 50
"""The number of latest updates over which the rate is measured: the last 5 s of a steady transfer."""


class Moved(NamedTuple):
    """The progress of a transfer in bytes; a `total` of 0 means unknown.

    `name` is the current file. `doing` names the activity; empty for sending.
    """

    done: int
    total: int
    bytes_per_s: float
    name: str
    doing: str = ""

    @property
    def eta_s(self) -> float | None:
        """The remaining seconds at this rate, None while nothing moves, or without a total."""
        if not self.total or self.bytes_per_s <= 0:
            return None
        return max(0, self.total - self.done) / self.bytes_per_s


class Meter:
    """Counts the bytes of one transfer, and shows them at most ten times a second.

    Example: `meter = Meter(total, stage.moved)`, then `meter.advance(len(piece), name)` for each piece.
    """

    def __init__(self, total_bytes: int, show: Callable[[Moved], None], doing: str = "") -> None:
        self._total, self._show, self._doing = total_bytes, show, doing
        self._done = 0
        self._figures = deque([(time.monotonic(), 0)], maxlen=RATE_OVER)

    def advance(self, count: int, name: str) -> None:
        """Count bytes of a file that were transferred."""
        self._done += count
        now = time.monotonic()
        if now - self._figures[-1][0] < SHOWN_EVERY_S:
            return
        then, before = self._figures[0]
        self._figures.append((now, self._done))
        rate = (self._done - before) / (now - then)
        self._show(Moved(self._done, self._total, rate, name, self._doing))
