"""A process's hold on a rental: a lock that ends with the process, and a heartbeat.

The lock alone does not prove that a process manages the machine: Ctrl-Z stops a process but keeps its locks.
The heartbeat ends when the process is stopped. A holder of an older version has no heartbeat. It counts as
alive while it has the lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from launcher.agent.record.locks import Lock, is_locked

BEAT_S = 5.0
STALE_S = 15.0
"""A holder without a heartbeat for this many seconds is stopped, or hangs."""
PROOF_S = 2 * BEAT_S
"""The seconds to watch a stale heartbeat before the hold is taken away.

The wall clock may have just been changed.
"""


READS_LIMITS = "reads limits"
"""The content of the heartbeat file of a holder that notices a raised limit.

Older versions do not write it.
"""


class RentalLock(Lock):
    """A rental lock with a heartbeat until its release."""

    def __init__(self, descriptor: int, lock: Path) -> None:
        """Start the heartbeat for the holder of this open, locked file."""
        super().__init__(descriptor)
        self._path, self._ended = lock, threading.Event()
        with contextlib.suppress(OSError):  # without this text the rental cannot be extended
            _beat_of(lock).write_text(READS_LIMITS)
        self._beat()
        threading.Thread(target=self._go_on, name="rental beat", daemon=True).start()

    @property
    def is_valid(self) -> bool:
        """Whether this process still has the rental: another process can take it while this one is stopped.

        A process that takes it creates the lock file anew.
        """
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return (
                True  # the ledger was removed, or its disk does not answer: no process has taken the rental
            )

    def release(self) -> None:
        """Release the lock and stop the heartbeat."""
        self._ended.set()
        super().release()

    def _go_on(self) -> None:
        while not self._ended.wait(BEAT_S):
            if self.is_valid:
                self._beat()

    def _beat(self) -> None:
        with contextlib.suppress(OSError):  # as on a full disk, where an existing file can still be touched
            _beat_of(self._path).touch(mode=0o600)


def is_alive(lock: Path) -> bool:
    """Whether a process holds a rental and its heartbeat is fresh."""
    return is_locked(str(lock)) and _is_fresh(lock)


def reads_limits(lock: Path) -> bool:
    """Whether the process that holds a rental notices a raised limit."""
    with contextlib.suppress(OSError):
        return _beat_of(lock).read_text() == READS_LIMITS
    return False


def is_stopped(lock: Path) -> bool:
    """Whether the process that holds a rental is stopped or hangs.

    Watch a stale heartbeat for PROOF_S first.
    """
    if not is_locked(str(lock)) or _is_fresh(lock):
        return False
    seen, until = _beaten(lock), time.monotonic() + PROOF_S
    while time.monotonic() < until:
        time.sleep(BEAT_S / 10)
        if _beaten(lock) != seen or not is_locked(str(lock)):
            return False
    return True


def _is_fresh(lock: Path) -> bool:
    beaten = _beaten(lock)
    return beaten is None or abs(time.clock_gettime(time.CLOCK_REALTIME) - beaten) < STALE_S


def _beaten(lock: Path) -> float | None:
    """Return the time of the last heartbeat, or None for a holder of an older version."""
    try:
        return _beat_of(lock).stat().st_mtime
    except OSError:
        return None


def _beat_of(lock: Path) -> Path:
    return lock.with_suffix(".beat")
