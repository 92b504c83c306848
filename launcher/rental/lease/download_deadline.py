"""The time in which what a run made can come home from a rented machine: until its limit, and no connection lasts longer.

A machine costs money as long as something comes from it, so a slow link must not decide what a rent costs.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.base.clock import Clock
    from launcher.transport.client.desk import HostClient

LOOK_S = 1.0
"""How often the clock is looked at: it may jump, and this machine may sleep."""


class Limits(NamedTuple):
    """When the run stops, and when the last byte has come, in seconds since 1970. A rental may be given more time."""

    due: float
    ends: float


class DownloadDeadline:
    """It is over at the limit. A process that comes too late for the last minutes before that has as many after it."""

    def __init__(self, limits: Callable[[], Limits], clock: Clock, note: Callable[[float], None]) -> None:
        """Begin when the run is due; `note` is called with the time until which it lasts, beyond the limit if it came late."""
        self._limits, self._clock, self._note = limits, clock, note
        self._until: float | None = None
        self._extended = 0.0
        self._desks: weakref.WeakSet[HostClient] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_due(self) -> bool:
        """Whether the minutes before the limit have begun."""
        now, (due, ends) = self._clock.now(), self._limits()
        with self._lock:
            if now < due:
                self._until = None
            elif self._until is None or self._until < ends:
                self._until = max(ends, now + ends - due)
                self._note(self._until)
            return self._until is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come."""
        if not self.is_due or time.monotonic() < self._extended:
            return False
        return self._until is not None and self._clock.now() >= self._until

    def extend(self, seconds: float) -> None:
        """Have at least so many seconds from now on, by the time that this machine is awake."""
        self._extended = time.monotonic() + seconds

    def guarded(self, desk: HostClient) -> HostClient:
        """Return a desk whose connection is cut once the time is over."""
        with self._lock:
            self._desks.add(desk)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="download deadline", daemon=True)
                self._thread.start()
        return desk

    def end(self) -> None:
        """Cut nothing any more."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            if not self.is_over:
                continue
            with self._lock:
                desks = [*self._desks]
                self._desks.clear()
            for desk in desks:
                with contextlib.suppress(LaunchError, OSError):
                    desk.sever()
