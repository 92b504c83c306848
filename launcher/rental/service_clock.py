"""The time by a service's clock: the last `Date` of its answers, and what has passed since by this machine's boot clock.

Rentals are limited and paid by it. This machine's wall clock may be set at any moment, so it decides nothing as long as the
service has told its time. The last `Date` lies in a file that all commands of this user share: they all have the same time,
before and after the wall clock is set. After a reboot the boot clock begins anew, and the service is asked.
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

MOST_AHEAD_S = 30 * 86_400.0
"""A `Date` that is further ahead of the time that is known is an error of whoever sent it."""
ASK_AGAIN_S = 60.0
"""How often a service that does not answer is asked for its time."""


class ServiceDate(NamedTuple):
    """A `Date` in seconds since 1970, and when it was seen by the boot clock of a boot; `is_guess` without a service."""

    boot: str
    date: float
    at: float
    is_guess: bool = False

    @property
    def offset_s(self) -> float:
        """What is added to that boot's clock."""
        return self.date - self.at


class ServiceClock:
    """The service's time. Threads may share it."""

    def __init__(self, path: Path) -> None:
        """Share the last `Date` with all who name the same file."""
        self._path = path
        self._clock, self._boot = SystemClock(), _boot()
        self._own: ServiceDate | None = None
        self._asked_s = -math.inf

    @property
    def is_known(self) -> bool:
        """Whether the service has told its time since this machine's boot."""
        seen = self._known()
        return seen is not None and not seen.is_guess

    def now(self) -> float:
        """Return the time by which rentals end. Until the service has told it, that of its last `Date` is where it begins."""
        return self._at(self._known() or self._guessed())

    def likely(self) -> float:
        """Return the time for a table that asks nobody. Until the service has told it, this machine's wall clock counts too."""
        seen, saved = self._known(), _read(self._path)
        if seen is not None:
            return self._at(seen) if not seen.is_guess else max(self._at(seen), time.time())
        return max(time.time(), 0.0 if saved is None else saved.date)

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        self._clock.sleep(seconds)

    def note(self, date: float) -> None:
        """Learn the service's time from an answer of this moment.

        A `Date` is old by the answer's way here, so the latest counts. One that lags behind changes nothing.
        """
        seen, known = ServiceDate(self._boot, date, self._clock.now()), self._known()
        if known is not None and not known.is_guess:
            ahead_s = seen.offset_s - known.offset_s
            if not 0 < ahead_s <= MOST_AHEAD_S:
                return
        self._own = seen
        _write(self._path, seen)

    def learn(self, ask: Callable[[], object]) -> None:
        """Ask the service, whose answer is noted, unless its time is known. Without an answer ask again in a minute."""
        if self.is_known or self._clock.now() < self._asked_s + ASK_AGAIN_S:
            return
        self._asked_s = self._clock.now()
        with suppress(ServiceError):
            ask()

    def _at(self, seen: ServiceDate) -> float:
        return seen.offset_s + self._clock.now()

    def _known(self) -> ServiceDate | None:
        """Return the best that is known of this boot, here or in the file: what the service said, and the latest of that."""
        saved, own = _read(self._path), self._own
        if saved is not None and saved.boot == self._boot and (own is None or _rank(saved) > _rank(own)):
            self._own = saved
        return self._own

    def _guessed(self) -> ServiceDate:
        """Begin at the last `Date`; without any at the wall clock, which is read once, and not again after it is set."""
        saved = _read(self._path)
        has_date = saved is not None and not saved.is_guess
        date = saved.date if saved is not None and has_date else time.time()
        self._own = ServiceDate(self._boot, date, self._clock.now(), is_guess=True)
        if not has_date:
            _write(self._path, self._own)
        return self._own


def clock_of(provider: str) -> ServiceClock:
    """Return the clock of a provider's service, which all commands of this user share: no service's `Date` counts for another's rentals."""
    name = "service-time.json" if provider == FIRST else f"service-time-{provider}.json"
    return ServiceClock(Unix("launch").user_state_path / name)


def _rank(seen: ServiceDate) -> tuple[bool, float]:
    return not seen.is_guess, seen.offset_s


def _boot() -> str:
    """Return a text for each boot clock: that of another boot, or of a container with a time of its own, is another one."""
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
    """Put it in the file as a whole. A disk that refuses changes nothing: this process knows it."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(str(path), json.dumps(seen))
