"""The deadline for downloads from a rented machine. At the rental's limit every connection is cut.

A machine is billed while files are downloaded, so a slow connection must not raise the cost.
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
    from launcher.transport.client.host_client import HostClient

LOOK_S = 1.0
"""The interval of clock checks in seconds.

Checks are needed because the clock may jump and this machine may sleep.
"""


class Limits(NamedTuple):
    """When the run must stop, and when downloads end, in seconds since 1970. An extension moves both."""

    due: float
    ends: float


class DownloadDeadline:
    """The deadline of one rental.

    It is the limit, unless this process starts after the reserved minutes have begun. Then the process gets
    the full reserved time, beyond the limit.
    """

    def __init__(self, limits: Callable[[], Limits], clock: Clock, note: Callable[[float], None]) -> None:
        """Begin when the run must stop (`due`). `note` is called with the deadline, which may be beyond the limit."""
        self._limits, self._clock, self._note = limits, clock, note
        self._until: float | None = None
        self._extended = 0.0
        self._clients: weakref.WeakSet[HostClient] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_due(self) -> bool:
        """Whether the minutes reserved for downloads have begun."""
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
        """Whether the deadline has passed."""
        if not self.is_due or time.monotonic() < self._extended:
            return False
        return self._until is not None and self._clock.now() >= self._until

    def extend(self, seconds: float) -> None:
        """Allow at least this many seconds from now, not counting time in which this machine sleeps."""
        self._extended = time.monotonic() + seconds

    def guarded(self, client: HostClient) -> HostClient:
        """Return the host client. Its connection is cut at the deadline."""
        with self._lock:
            self._clients.add(client)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="download deadline", daemon=True)
                self._thread.start()
        return client

    def end(self) -> None:
        """Stop watching. Cut no more connections."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            if not self.is_over:
                continue
            with self._lock:
                clients = [*self._clients]
                self._clients.clear()
            for client in clients:
                with contextlib.suppress(LaunchError, OSError):
                    client.sever()
