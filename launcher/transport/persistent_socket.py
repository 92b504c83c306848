"""The sockets of persistent connections: their paths, their permissions, and the first messages over them.

The name of each is a digest of everything that decides the connection's target and its permission: the host's
table, ssh's configuration of each hop, the known_hosts files, the keys, this version and its agent. After any
change the next command looks for another name, and connects anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import __version__
from launcher.agent.record import strict_json
from launcher.base import user_sockets
from launcher.base.json_file import JsonObject
from launcher.base.user_sockets import check_peer

if TYPE_CHECKING:
    from launcher.transport.ssh.ssh_config import Hop
    from launcher.values.host import Host

WAY = ("name", "address", "port", "user", "identity_file", "known_hosts", "root", "python", "hold")
"""The fields of a host's table that decide the connection's target and its lifetime."""
MAX_MESSAGE = 64 * 1024
MAX_PATH = 100
"""The maximum bytes of a socket's path. Systems allow 104 to 108."""
_OPENING = "opening-"
_SIZE = struct.Struct(">I")


def socket_folder() -> Path:
    """Return the folder of this user's sockets. It may not exist yet."""
    return Path(user_sockets.folder())


def sockets() -> list[Path]:
    """Return the sockets in the folder, after a check of its permissions. An unsafe folder has none."""
    folder = socket_folder()
    try:
        user_sockets.check_folder(str(folder))
        return sorted(path for path in folder.iterdir() if not path.name.startswith(_OPENING))
    except OSError:
        return []


def marks() -> list[Path]:
    """Return the markers of connections in preparation, after the same check."""
    folder = socket_folder()
    try:
        user_sockets.check_folder(str(folder))
        return sorted(folder.glob(f"{_OPENING}*"))
    except OSError:
        return []


@contextlib.contextmanager
def new_mark() -> Iterator[tuple[Path, int]]:
    """Create a marker, and yield its path and its locked descriptor. Raises OSError.

    The marker stays locked while a process has the descriptor. It exists from before the process starts until
    the process listens, so that `launch hosts --close` misses no connection.
    """
    folder = socket_folder()
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    user_sockets.check_folder(str(folder))
    mark = folder / f"{_OPENING}{secrets.token_hex(8)}"
    descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield mark, descriptor
    finally:
        os.close(descriptor)


def is_locked(descriptor: int) -> bool:
    """Whether the process of a marker is alive. `descriptor` is a second descriptor of the marker."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def is_alive(mark: Path) -> bool:
    """Whether the process of a marker may be alive."""
    try:
        descriptor = os.open(mark, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return True  # it listens already, or another user owns the marker
    try:
        return is_locked(descriptor)
    finally:
        os.close(descriptor)


def connect(path: Path, timeout_s: float) -> socket.socket:
    """Connect to a socket whose other end is a process of this user. Raises OSError."""
    user_sockets.check_socket(str(path))
    stream = socket.socket(socket.AF_UNIX)
    try:
        stream.settimeout(timeout_s)
        stream.connect(str(path))
        check_peer(stream)
    except BaseException:
        stream.close()
        raise
    return stream


def say(stream: socket.socket, **values: Any) -> None:
    """Send a message before the raw bytes. Raises OSError."""
    data = json.dumps(values).encode()
    stream.sendall(_SIZE.pack(len(data)) + data)


def hear(stream: socket.socket) -> JsonObject:
    """Return the next message from the other end. Raises OSError, also for a malformed one."""
    (size,) = _SIZE.unpack(exactly(stream, _SIZE.size))
    if size > MAX_MESSAGE:
        raise ConnectionAbortedError("a message is too long")
    try:
        values = strict_json.decode(exactly(stream, size))
    except (ValueError, RecursionError) as error:
        raise ConnectionAbortedError("a message is malformed") from error
    if not isinstance(values, dict):
        raise ConnectionAbortedError("a message is malformed")
    return values


def exactly(stream: socket.socket, size: int) -> bytes:
    """Read exactly this many bytes. Raises OSError."""
    pieces = []
    while size:
        piece = stream.recv(size)
        if not piece:
            raise ConnectionResetError("the process at the other end has gone")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def socket_of(host: Host, route: Sequence[Hop]) -> Path | None:
    """Return the path of the socket for a host by this route, or None if no connection may be kept.

    That is the case if a program supplies the known keys, since its output may change.
    """
    if any(hop.known_hosts_command for hop in route):
        return None
    from launcher.transport.agent_file import agent_stamp

    digest = hashlib.sha256()
    said = [__version__, agent_stamp(), str(Path.home()), *(repr(getattr(host, key)) for key in WAY)]
    for hop in route:
        said.append(repr(hop))
        said += [_content(file) for file in (*hop.known_hosts, *hop.revoked_hosts)]
        for file in (*hop.identity_files, *hop.certificates):
            said += [_stamp(name) for name in (file, f"{file}.pub", f"{file}-cert.pub")]
    digest.update(json.dumps(said).encode())
    path = socket_folder() / digest.hexdigest()[:32]
    return path if len(os.fsencode(path)) <= MAX_PATH else None


def _content(file: str) -> str:
    try:
        return hashlib.sha256(Path(os.path.expanduser(file)).read_bytes()).hexdigest()
    except OSError as error:
        return str(error.errno)


def _stamp(file: str) -> str:
    try:
        state = os.stat(file)
    except OSError as error:
        return str(error.errno)
    return repr((state.st_ino, state.st_size, state.st_mtime_ns))
