"""The time in which what a run made can come home from a rented machine: until its limit, and no connection lasts longer.

A machine costs money as long as something comes from it, so a slow link must not decide what a rent costs.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import TYPE_CHECKING

from launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.hosts import Desk
    from launcher.values.clock import Clock

LOOK_S = 1.0
"""How often the clock is looked at: it may jump, and this machine may sleep."""


class HomeTime:
    """It is over at the limit. A process that comes too late for the last minutes before that has as many after it."""

    def __init__(self, due: float, limit: float, clock: Clock, note: Callable[[float], None]) -> None:
        """Begin at `due`; `note` is called once with the time until which it lasts, and which is beyond the limit if it came late."""
        self._due, self._home_s, self._clock = due, limit - due, clock
        self._until, self._note = limit, note
        self._extended = 0.0
        self._is_due = False
        self._desks: weakref.WeakSet[Desk] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_due(self) -> bool:
        """Whether the minutes before the limit have begun."""
        now = self._clock.now()
        with self._lock:
            if not self._is_due and now >= self._due:
                self._is_due = True
                self._until = max(self._until, now + self._home_s)
                self._note(self._until)
            return self._is_due

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come."""
        return self.is_due and self._clock.now() >= self._until and time.monotonic() >= self._extended

    def extend(self, seconds: float) -> None:
        """Have at least so many seconds from now on, by the time that this machine is awake."""
        self._extended = time.monotonic() + seconds

    def guarded(self, desk: Desk) -> Desk:
        """Return a desk whose connection is cut once the time is over."""
        with self._lock:
            self._desks.add(desk)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="home time", daemon=True)
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
