"""The clock for code that waits.

It is passed as an argument, so that a test of a five-minute wait takes no time.
"""

from __future__ import annotations

import time
from typing import Protocol

_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Also counts the machine's sleep: CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS."""


class Clock(Protocol):
    """Returns the time in seconds, and waits."""

    def now(self) -> float:
        """Return the time."""

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds."""


def look_again_after(seconds: float) -> None:
    """Wait for another process on this computer. This takes real time, whatever clock is in use."""
    time.sleep(seconds)


class SystemClock:
    """This machine's boot clock: seconds since about its boot, including its sleep. It cannot be set."""

    def now(self) -> float:
        """Return the time."""
        return time.clock_gettime(_BOOT_CLOCK)

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds."""
        time.sleep(seconds)
