"""A clock that only moves when someone sleeps by it, shared by threads and processes through a file."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
from pathlib import Path

START = 1_800_000_000.0


class SimClock:
    """A clock in a file: whoever sleeps moves it, and returns at once."""

    def __init__(self, path: Path) -> None:
        """Open the clock, which begins at START."""
        self._path = path
        if not path.exists():
            path.write_bytes(struct.pack("d", START))

    def now(self) -> float:
        """Return the time."""
        return struct.unpack("d", self._path.read_bytes())[0]

    def sleep(self, seconds: float) -> None:
        """Move on by so many seconds."""
        descriptor = os.open(self._path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            (now,) = struct.unpack("d", os.pread(descriptor, 8, 0))
            os.pwrite(descriptor, struct.pack("d", now + seconds), 0)
        finally:
            os.close(descriptor)


class WallClock:
    """The clock of a service that has the right time."""

    def now(self) -> float:
        """Return the time."""
        return time.time()


def wait_by_it() -> None:
    """Let all of this process wait by the clock in the file SIM_CLOCK, also what has been imported."""
    from launcher.values import clock

    system = clock.SystemClock

    class FileClock(SimClock):
        def __init__(self) -> None:
            super().__init__(Path(os.environ["SIM_CLOCK"]))

    for module in [*sys.modules.values()]:
        if getattr(module, "SystemClock", None) is system:
            module.SystemClock = FileClock  # type: ignore[attr-defined]
