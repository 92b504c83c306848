"""A service's clock: the last `Date` header of its answers, plus the time since then by the boot clock.

Rentals are limited and billed by this time. This machine's wall clock can be changed at any moment, so it is
ignored once the service's time is known. The last `Date` is stored in a file that all commands of this user
share, so they agree on the time, even if the wall clock is changed. After a reboot the boot clock restarts,
and the service must be asked.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from platformdirs.unix import Unix

from launcher.agent.record import strict_json
from launcher.agent.record.files import write_durably
from launcher.agent.system import process
from launcher.base.clock import SystemClock
from launcher.errors import ServiceError
from launcher.rental.provider import FIRST

MAX_AHEAD_S = 30 * 86_400.0
"""A `Date` that is more than these seconds ahead of the known time counts as the sender's error."""
ASK_AGAIN_S = 60.0
"""The seconds between two requests to a service that does not answer."""


class ServiceDate(NamedTuple):
    """A `Date` in seconds since 1970, and the boot clock's time when it arrived.

    `is_guess`: not from a service.
    """

    boot: str
    date: float
    at: float
    is_guess: bool = False

    @property
    def offset_s(self) -> float:
        """The seconds to add to that boot's clock."""
        return self.date - self.at


class ServiceClock:
    """The service's time. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Share the last `Date` with all clocks that use the same file."""
        self._path = path
        self._clock, self._boot = SystemClock(), _boot()
        self._own: ServiceDate | None = None
        self._asked_s = -math.inf

    @property
    def is_known(self) -> bool:
        """Whether the service's time is known since this machine's boot."""
        seen = self._known()
        return seen is not None and not seen.is_guess

    def now(self) -> float:
        """Return the time that decides when rentals end.

        Until the service answers, the clock runs from the last known `Date`.
        """
        return self._at(self._known() or self._guessed())

    def likely(self) -> float:
        """Return the time for a table, without a request to the service.

        Until the service answers, return this machine's wall clock if that is later.
        """
        seen, saved = self._known(), _read(self._path)
        if seen is not None:
            return self._at(seen) if not seen.is_guess else max(self._at(seen), time.time())
        return max(time.time(), 0.0 if saved is None else saved.date)

    def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds."""
        self._clock.sleep(seconds)

    def note(self, date: float) -> None:
        """Learn the service's time from an answer that arrived now.

        A `Date` is late by its travel time, so the latest one counts. One that lags behind changes nothing.
        """
        seen, known = ServiceDate(self._boot, date, self._clock.now()), self._known()
        if known is not None and not known.is_guess:
            ahead_s = seen.offset_s - known.offset_s
            if not 0 < ahead_s <= MAX_AHEAD_S:
                return
        self._own = seen
        _write(self._path, seen)

    def learn(self, ask: Callable[[], object]) -> None:
        """Call `ask` to learn the service's time, unless it is known.

        After a failure, wait a minute before the next request.
        """
        if self.is_known or self._clock.now() < self._asked_s + ASK_AGAIN_S:
            return
        self._asked_s = self._clock.now()
        with suppress(ServiceError):
            ask()

    def _at(self, seen: ServiceDate) -> float:
        return seen.offset_s + self._clock.now()

    def _known(self) -> ServiceDate | None:
        """Return the best known time of this boot, from memory or the file.

        A service's time takes precedence over a guess. Of two times of the same kind, the later one does.
        """
        saved, own = _read(self._path), self._own
        if saved is not None and saved.boot == self._boot and (own is None or _rank(saved) > _rank(own)):
            self._own = saved
        return self._own

    def _guessed(self) -> ServiceDate:
        """Start at the last `Date`, or else at the wall clock.

        The wall clock is read once and later changes are ignored.
        """
        saved = _read(self._path)
        has_date = saved is not None and not saved.is_guess
        date = saved.date if saved is not None and has_date else time.time()
        self._own = ServiceDate(self._boot, date, self._clock.now(), is_guess=True)
        if not has_date:
            _write(self._path, self._own)
        return self._own


def clock_of(provider: str) -> ServiceClock:
    """Return the clock of a provider's service.

    All commands of this user share it, and each provider has its own.
    """
    name = "service-time.json" if provider == FIRST else f"service-time-{provider}.json"
    return ServiceClock(Unix("launch").user_state_path / name)


def _rank(seen: ServiceDate) -> tuple[bool, float]:
    return not seen.is_guess, seen.offset_s


def _boot() -> str:
    """Return an identifier of the boot clock.

    It differs after a reboot, and in a container with its own time namespace.
    """
    try:
        boot = process.boot_id()
    except OSError:
        boot = ""
    with suppress(OSError):
        boot = boot and f"{boot} {os.readlink('/proc/self/ns/time')}"
    return boot or os.urandom(8).hex()


def _read(path: Path) -> ServiceDate | None:
    try:
        boot, date, at, is_guess = strict_json.decode(path.read_bytes())
        seen = ServiceDate(str(boot), float(date), float(at), is_guess is True)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    return seen if math.isfinite(seen.offset_s) else None


def _write(path: Path, seen: ServiceDate) -> None:
    """Replace the file atomically. A failed write is ignored, since this process knows the date."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(str(path), json.dumps(seen))
