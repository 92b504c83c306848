"""Temporary folders for the files and secrets of a build.

Only this user can read them. They are in memory if the host has /dev/shm, and are removed when the build
ends. If an agent was killed by SIGKILL, the next build or a reboot removes its folder.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import shutil
import tempfile
import time
from typing import Iterator

from ..record.locks import Lock, is_locked

PREFIX = "launch-build-"
MEMORY = "/dev/shm"  # noqa: S108 - only this user can read our folders in it
YOUNG_S = 60.0


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """Provide a folder that only this user can read, and remove it afterwards. Raises OSError."""
    folder, lock = new_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def new_folder() -> tuple[str, Lock]:
    """Remove dead folders, then make a folder for one build, and lock it."""
    for path in dead_folders():
        shutil.rmtree(path, ignore_errors=True)
    parent, prefix = _parent_and_prefix()
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    lock = Lock.take(os.path.join(folder, "lock"))
    if lock is None:
        raise OSError(errno.EAGAIN, "locked by another process", folder)
    return folder, lock


def dead_folders() -> list[str]:
    """Return the folders of builds whose agent was killed."""
    parent, prefix = _parent_and_prefix()
    paths = [os.path.join(parent, name) for name in os.listdir(parent) if name.startswith(prefix)]
    return [path for path in paths if _is_dead(path)]


def _parent_and_prefix() -> tuple[str, str]:
    """Return the folder of all scratch folders, and the prefix of their names."""
    parent = MEMORY if os.access(MEMORY, os.W_OK) else tempfile.gettempdir()
    return parent, "%s%d-" % (PREFIX, os.getuid())


def _is_dead(path: str) -> bool:
    """Return whether no process holds a folder. A young one may be about to be locked."""
    try:
        status, lock = os.lstat(path), os.path.join(path, "lock")
    except FileNotFoundError:  # another build has just removed it
        return False
    is_young = time.time() - status.st_mtime < YOUNG_S
    if status.st_uid != os.getuid() or is_young or not os.path.exists(lock):
        return False
    return not is_locked(lock)


def write_base64(path: str, text: str) -> None:
    """Write base64-encoded contents into a new file that only this user can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(base64.b64decode(text))
