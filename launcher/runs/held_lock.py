"""A lock between the commands of this client: a `flock`, which ends with its holder, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

AGAIN_S = 0.02


class HeldLock:
    """A lock that this process holds."""

    def __init__(self, descriptor: int) -> None:
        """Take over the descriptor of a locked file."""
        self._descriptor = descriptor

    def release(self) -> None:
        """Release it."""
        os.close(self._descriptor)


def take(path: Path, wait_s: float = 0.0) -> HeldLock | None:
    """Take the lock of a file, which is made if missing; None if another process has held it for `wait_s` seconds. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(AGAIN_S)
        except OSError:
            os.close(descriptor)
            raise
        else:
            return HeldLock(descriptor)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock of a file. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
