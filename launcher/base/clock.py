"""The clock of whatever waits: it is handed in, so that a test of five minutes takes none."""

from __future__ import annotations

import time
from typing import Protocol

_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It counts the time in which the machine sleeps: on Linux CLOCK_BOOTTIME, on macOS CLOCK_MONOTONIC."""


class Clock(Protocol):
    """Tells the time in seconds, and waits."""

    def now(self) -> float:
        """Return the time."""

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""


def look_again_after(seconds: float) -> None:
    """Wait until another process here may have done something: that takes its time, whatever clock is handed in."""
    time.sleep(seconds)


class SystemClock:
    """This machine's boot clock: seconds since some moment of its boot, those of its sleep included. Nobody can set it."""

    def now(self) -> float:
        """Return the time."""
        return time.clock_gettime(_BOOT_CLOCK)

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        time.sleep(seconds)
