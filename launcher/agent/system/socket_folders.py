"""The folders of agents' sockets. They lie in the temporary folder, because the path of a Unix socket must be short.

An agent holds a lock on its folder itself for as long as it lives, however it dies. So a folder of this user, host and root
whose lock is free is a dead agent's, and may go.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import tempfile
from typing import Iterator, List, Optional, Tuple

from . import process

SOCKET = "s"
MAX_SOCKET_PATH = 100  # bytes: sun_path holds 104 on macOS, 108 on Linux
_SHORT = "/tmp"  # noqa: S108 - mkdtemp makes folders that are this user's alone
_ANY_NAME = "launch-agent-12345678-123456-12345678"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def socket_path(root: str, run: str) -> Iterator[str]:
    """Remove the folders of dead agents of a root, and yield the path for a socket in a new one, which is removed afterwards.

    Its name has the random part of the run's id, by which a drill finds it.
    """
    for dead in dead_folders(root):
        remove(dead)
    path, lock = _new_folder("%s%s-" % (_prefix(root), run.rpartition("-")[2]))
    try:
        yield os.path.join(path, SOCKET)
    finally:
        _clear(path)
        if lock is not None:
            os.close(lock)


def dead_folders(root: str) -> List[str]:
    """Return the folders of agents of a root that have died on this host."""
    name = re.compile(re.escape(_prefix(root)) + "[a-z0-9]{1,6}-[a-z0-9_]{8}")
    parent = _parent()
    paths = [os.path.join(parent, one) for one in sorted(os.listdir(parent)) if name.fullmatch(one)]
    return [path for path in paths if _is_dead(path)]


def remove(path: str) -> bool:
    """Remove the folder of a dead agent; return False if it is not one. The lock is held meanwhile: nobody begins to use it."""
    with _held(path) as is_ours:
        return is_ours and _clear(path)


def _is_dead(path: str) -> bool:
    with _held(path) as is_ours:
        return is_ours


@contextlib.contextmanager
def _held(path: str) -> Iterator[bool]:
    """Hold the lock of a folder; yield whether it is held, and the folder this user's own."""
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError:  # it is gone, or somebody else's
        yield False
        return
    try:
        status = os.fstat(descriptor)
        is_ours = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == stat.S_IRWXU
        if is_ours:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its agent lives, or the file system has no locks
        is_ours = False
    try:
        yield is_ours
    finally:
        os.close(descriptor)


def _clear(path: str) -> bool:
    """Remove a folder with its socket and nothing else."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(path, SOCKET))
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def _new_folder(prefix: str) -> Tuple[str, Optional[int]]:
    """Make a folder; return it with its lock. Where there are no locks it has a name that nobody looks for."""
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=_parent())
        with contextlib.suppress(FileNotFoundError):  # somebody found it before it was locked
            lock = os.open(path, _FOLDER)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # somebody is looking at it: the next attempt removes it
                os.close(lock)
                continue
            except OSError:
                os.close(lock)
                os.rmdir(path)
                return tempfile.mkdtemp(prefix="launch-", dir=_parent()), None
            if os.path.isdir(path):
                return path, lock
            os.close(lock)


def _parent() -> str:
    """Return the temporary folder, or /tmp if its path is too long for a socket in a folder of ours."""
    parent = tempfile.gettempdir()
    longest = os.path.join(parent, _ANY_NAME, SOCKET)
    return parent if len(os.fsencode(longest)) <= MAX_SOCKET_PATH else _SHORT


def _prefix(root: str) -> str:
    """Return how the names of a root's folders begin on this host: another may share the temporary folder, and not its locks."""
    where = "%s\n%s" % (process.host_id(), os.path.realpath(root))
    return "launch-agent-%s-" % hashlib.sha256(where.encode("utf-8", "surrogateescape")).hexdigest()[:8]
