"""The folder of this user's sockets, a separate one for each home folder. No other user can replace its contents."""

from __future__ import annotations

import os
import socket
import stat
import struct

KNOWS_PEERS = hasattr(socket, "SO_PEERCRED")
"""Whether the system reports the process at the other end of a socket, as Linux does."""
_PEER = struct.Struct("3i")
"""The format of that report: pid, user, group."""


class UnsafeSocketError(OSError):
    """Raised when a socket, or its folder, may belong to another user."""


def folder() -> str:
    """Return the folder of this user's sockets for this home folder. It may not exist yet."""
    own = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if os.path.isabs(own) and os.path.isdir(own):
        return os.path.join(own, f"launch-{_home_id()}")
    return f"/tmp/launch-{os.getuid()}-{_home_id()}"  # noqa: S108 - it is checked at each use


def _home_id() -> str:
    """Return an id of the home folder, the same for each spelling of its path.

    Each home folder has its own hosts, keys and settings, so their connections are separate.
    """
    try:
        state = os.stat(os.path.expanduser("~"))
    except OSError:
        return "none"
    return f"{state.st_dev:x}-{state.st_ino:x}"


def check_folder(path: str) -> None:
    """Check that a folder is private to this user, and that no other user can replace it.

    Raises OSError, also for a missing folder.
    """
    state = os.lstat(path)
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise UnsafeSocketError(f"{path}: is not a folder of this user alone (mode 700)")
    parent = path
    while (parent := os.path.dirname(parent)) != path:
        path, above = parent, os.stat(parent)
        is_open = above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
        if above.st_uid not in (0, os.getuid()) or is_open:
            raise UnsafeSocketError(f"{parent}: another user can change it")


def check_socket(path: str) -> None:
    """Check that a path is a private socket of this user, in a private folder. Raises OSError."""
    check_folder(os.path.dirname(path))
    state = os.lstat(path)
    if not stat.S_ISSOCK(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise UnsafeSocketError(f"{path}: is not a socket of this user alone")


def check_peer(stream: socket.socket) -> int:
    """Check that the process at the other end belongs to this user. Return its pid, as reported by the kernel.

    Raises UnsafeSocketError.
    """
    if not KNOWS_PEERS:
        raise UnsafeSocketError("this system cannot identify the process at the other end")
    report = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, user, _group = _PEER.unpack(report)
    if user != os.getuid():
        raise UnsafeSocketError(f"a process of another user (uid {user}) is at the other end")
    return int(pid)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by SIGSTOP."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False
