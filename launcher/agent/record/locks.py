"""Locks on files (`flock`): they end with the process that holds them, however it dies."""

from __future__ import annotations

import fcntl
import os
import time

from .files import REFUSED
from .safe_open import UnreadableError, open_folder, open_regular, parent_of

LOOK_S = 1.0


class Lock:
    """A held `flock`."""

    def __init__(self, descriptor: int) -> None:
        """Wrap an open, locked descriptor."""
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: str, wait_s: float = LOOK_S, *, shared: bool = False) -> Lock | None:
        """Lock a file, created if missing. Return None if another process holds the lock for `wait_s` s.

        The default wait outlasts the shared lock that `is_locked` holds for an instant.
        """
        descriptor = _open_lock(path)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return None
                time.sleep(0.005)
            except OSError:
                os.close(descriptor)
                raise
            else:
                return cls(descriptor)

    def fileno(self) -> int:
        """Return the descriptor. A process that inherits it keeps the lock for its lifetime."""
        return self._descriptor

    def share(self) -> None:
        """Make the lock shared, so that others may take it shared too."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def _open_lock(path: str) -> int:
    """Open the file of a lock, created if missing. Read access is enough, so a read-only disk will do.

    On a read-only disk a missing file cannot be created; its folder is locked instead.
    """
    try:
        return open_regular(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
    try:
        return open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return open_folder(parent_of(path))


def is_locked(path: str) -> bool:
    """Whether a process holds the exclusive lock of a file; False if the file is missing or not regular."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except (FileNotFoundError, UnreadableError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
