"""A clock that only moves when someone sleeps by it, shared by threads and processes through a file; and a computer by it."""

from __future__ import annotations

import fcntl
import json
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

    def learn(self, _ask: object) -> None:
        """Ask nobody: it is the service's clock too."""


class WallClock:
    """The clock of a service that has the right time."""

    def now(self) -> float:
        """Return the time."""
        return time.time()


class Computer:
    """A computer whose wall clock can be set, and which can be rebooted, as far as clients that are started with it can see.

    They have it in the file SIM_COMPUTER. Both clocks move with the simulated one.
    """

    def __init__(self, path: Path) -> None:
        """Have it in this file. A new one has the right time."""
        self._path = path
        if not path.exists():
            self._write(0.0, START - 5000)

    def set_wall(self, wrong_by_s: float) -> None:
        """Set its wall clock to a time that is wrong by so much."""
        self._write(wrong_by_s, self._read()[1])

    def reboot(self, now: float) -> None:
        """Begin another boot: the boot clock begins anew, and the wall clock stays as it is."""
        self._write(self._read()[0], now)

    def become(self, clock: SimClock) -> None:
        """Let this process be on it: what Python tells of time and boot is its."""
        from launcher.agent.system import process
        from launcher.base.clock import SystemClock

        real = time.clock_gettime

        def gettime(which: int) -> float:
            return clock.now() - self._read()[1] if which == time.CLOCK_BOOTTIME else real(which)

        time.time = lambda: clock.now() + self._read()[0]
        time.clock_gettime = gettime
        SystemClock.sleep = lambda _self, seconds: clock.sleep(seconds)  # type: ignore[method-assign]
        process.boot_id = lambda: f"booted at {self._read()[1]}"

    def _read(self) -> tuple[float, float]:
        wrong_by_s, booted = json.loads(self._path.read_text())
        return wrong_by_s, booted

    def _write(self, wrong_by_s: float, booted: float) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps([wrong_by_s, booted]))
        fresh.replace(self._path)


def wait_by_it() -> None:
    """Let all of this process wait by the clock in the file SIM_CLOCK, also what has been imported.

    With SIM_COMPUTER it is on that computer, whose clocks move with it, and the product's own code reads them.
    """
    if computer := os.environ.get("SIM_COMPUTER"):
        Computer(Path(computer)).become(SimClock(Path(os.environ["SIM_CLOCK"])))
        return
    from launcher.base import clock

    system = clock.SystemClock

    class FileClock(SimClock):
        def __init__(self) -> None:
            super().__init__(Path(os.environ["SIM_CLOCK"]))

    for module in [*sys.modules.values()]:
        if getattr(module, "SystemClock", None) is system:
            module.SystemClock = FileClock  # type: ignore[attr-defined]
