"""The hold of a process on a rental: a lock that ends with the process, and a beat that stops when the process is stopped.

A lock alone does not say that somebody looks after a machine: Ctrl-Z stops a process, and its locks stay. A holder of an
older version has no beat, and counts as alive as long as its lock is held.
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
"""A holder that has not beaten for so long is stopped, or hangs."""
PROOF_S = 2 * BEAT_S
"""So long a beat that seems stale is watched before a hold is taken away: the wall clock may just have been set."""


READS_LIMITS = "reads limits"
"""What the file of the beat says of a holder that notices a limit which is raised: one of an older version does not."""


class RentalLock(Lock):
    """A lock of a rental that beats until it is released."""

    def __init__(self, descriptor: int, lock: Path) -> None:
        """Beat for the holder of this open, locked file."""
        super().__init__(descriptor)
        self._path, self._ended = lock, threading.Event()
        with contextlib.suppress(OSError):  # then no more time can be given
            _beat_of(lock).write_text(READS_LIMITS)
        self._beat()
        threading.Thread(target=self._go_on, name="rental beat", daemon=True).start()

    @property
    def is_valid(self) -> bool:
        """Whether no other process has taken the rental, as one may from a process that was stopped. It makes the file anew."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return (
                True  # somebody removed the ledger, or its disk does not answer: nobody has taken the rental
            )

    def release(self) -> None:
        """Release the lock; the beat stops."""
        self._ended.set()
        super().release()

    def _go_on(self) -> None:
        while not self._ended.wait(BEAT_S):
            if self.is_valid:
                self._beat()

    def _beat(self) -> None:
        with contextlib.suppress(
            OSError
        ):  # as on a full disk, where a file that is there can still be touched
            _beat_of(self._path).touch(mode=0o600)


def is_alive(lock: Path) -> bool:
    """Whether a process holds a rental, and beats."""
    return is_locked(str(lock)) and _is_fresh(lock)


def reads_limits(lock: Path) -> bool:
    """Whether the process that holds a rental notices a limit that is raised."""
    with contextlib.suppress(OSError):
        return _beat_of(lock).read_text() == READS_LIMITS
    return False


def is_stopped(lock: Path) -> bool:
    """Whether the process that holds a rental is stopped or hangs. A beat that seems stale is watched for a while."""
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
    """Return when the holder has beaten last; None for one of an older version."""
    try:
        return _beat_of(lock).stat().st_mtime
    except OSError:
        return None


def _beat_of(lock: Path) -> Path:
    return lock.with_suffix(".beat")
