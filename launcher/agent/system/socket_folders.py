"""The folders of agents' sockets.

They are in the temporary folder, because the path of a Unix socket must be short. An agent locks its folder
until it dies. So a folder of this user, host and root whose lock is free belongs to a dead agent, and may be
removed.
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
    """Remove the folders of a root's dead agents. Yield a socket path in a new folder.

    The new folder is removed afterwards. Its name contains the random part of the run's id, by which a drill
    finds it.
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
    """Return the folders of a root's agents that have died on this host."""
    name = re.compile(re.escape(_prefix(root)) + "[a-z0-9]{1,6}-[a-z0-9_]{8}")
    parent = _parent()
    paths = [os.path.join(parent, one) for one in sorted(os.listdir(parent)) if name.fullmatch(one)]
    return [path for path in paths if _is_dead(path)]


def remove(path: str) -> bool:
    """Remove the folder of a dead agent, while holding its lock. Return false if the agent is not dead."""
    with _held(path) as is_ours:
        return is_ours and _clear(path)


def _is_dead(path: str) -> bool:
    with _held(path) as is_ours:
        return is_ours


@contextlib.contextmanager
def _held(path: str) -> Iterator[bool]:
    """Lock a folder. Yield whether that succeeded, and the folder belongs to this user and is private."""
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError:  # it is missing, or belongs to another user
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
    """Remove a folder that contains at most its socket."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(path, SOCKET))
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def _new_folder(prefix: str) -> Tuple[str, Optional[int]]:
    """Make a folder. Return it with its lock; without locks its name is one that no cleanup matches."""
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=_parent())
        with contextlib.suppress(FileNotFoundError):  # another process found it before it was locked
            lock = os.open(path, _FOLDER)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process is looking at it: the next attempt removes it
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
    """Return the temporary folder, or /tmp if its path is too long for a socket folder."""
    parent = tempfile.gettempdir()
    longest = os.path.join(parent, _ANY_NAME, SOCKET)
    return parent if len(os.fsencode(longest)) <= MAX_SOCKET_PATH else _SHORT


def _prefix(root: str) -> str:
    """Return the prefix of a root's folders on this host.

    Another host may share the temporary folder, but not its locks.
    """
    where = "%s\n%s" % (process.host_id(), os.path.realpath(root))
    return "launch-agent-%s-" % hashlib.sha256(where.encode("utf-8", "surrogateescape")).hexdigest()[:8]
