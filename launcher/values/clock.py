"""The clock of whatever waits: it is handed in, so that a test of five minutes takes none."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time in seconds since 1970, and waits."""

    def now(self) -> float:
        """Return the time."""

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""


def look_again_after(seconds: float) -> None:
    """Wait until another process here may have done something: that takes its time, whatever clock is handed in."""
    time.sleep(seconds)


class SystemClock:
    """This machine's clock."""

    def now(self) -> float:
        """Return the time."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        time.sleep(seconds)
