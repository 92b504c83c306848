"""The persistent connections: their use by this command, and the start of one for the next command.

After a command that has connected to one host, a background process (`connection_server.py`) connects to it
again, with the keys that need no user, and keeps that connection for the next command. It makes a second
handshake, so that the command's own connection stays unaffected: prompts and errors belong to the command,
and its connection ends with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher import errors
from launcher.agent.record import strict_json
from launcher.base import user_sockets
from launcher.base.json_file import JsonObject
from launcher.base.text import printable
from launcher.errors import ConnectionLostError, HostError
from launcher.transport import background, persistent_socket
from launcher.transport.channel import ForwardingOpener
from launcher.transport.ssh.ssh_config import Hop
from launcher.values.host import Host
from launcher.values.public_result import public

ASKED_S = 1.5
"""The seconds that a connection server may take to confirm a request. A stopped one never does."""
READY_S = 5.0
"""The seconds that a persistent connection may take to prove that it works. Otherwise a new one is made."""
OPEN_S = 90.0
"""The seconds that another stream may take to open on a working connection. An agent has to start."""
LOCAL_S = 2.0
"""The seconds that a connection server may take to report its state, and to exit afterwards."""
KINDS = ("ConnectionLostError", "RefusedStreamError", "PortClosedError", "UnreachableError", "HostError")
"""The errors that a connection server forwards."""
_LOG = logging.getLogger(__name__)
_PROGRAM = "from launcher.transport.connection_server import main; main()"
_WIPING = {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "85"}
"""With these variables, glibc overwrites freed memory, so that forwarded bytes do not stay in memory."""
_connected_hosts: dict[str, Host | None] = {}
"""The hosts that this process has connected to over SSH. None: keep no connection to this host."""


def find(host: Host, route: Sequence[Hop]) -> PersistentConnection | None:
    """Return the persistent connection to a host, or None if it is missing or broken."""
    if not host.hold:
        return None
    path = persistent_socket.socket_of(host, route)
    if path is None or not path.exists():
        return None
    try:
        connection = PersistentConnection(host.name, path)
    except (OSError, HostError) as error:
        if isinstance(error, TimeoutError):
            _drop(path)
        _LOG.debug("%s: the held connection is not used: %s", host.name, error)
        return None
    _LOG.debug("%s: by the connection that is held", host.name)
    _connected_hosts[host.name] = None
    return connection


def is_any() -> bool:
    """Whether any persistent connection exists, which makes a search worthwhile."""
    return bool(persistent_socket.sockets())


def note(host: Host, *, needs_person: bool) -> None:
    """Record that this process has connected to a host, and whether the user had to act for that."""
    _connected_hosts[host.name] = host if host.hold and not needs_person else None


def leave() -> None:
    """Start a persistent connection for the next command, if this command has used a single host.

    Return without waiting.
    """
    hosts = [*_connected_hosts.values()]
    _connected_hosts.clear()
    if len(hosts) != 1 or hosts[0] is None or not user_sockets.KNOWS_PEERS:
        return
    background.begin(_PROGRAM, hosts[0].name, hosts[0].model_dump_json().encode(), _WIPING)


class PersistentConnection:
    """This process's use of a connection that a connection server keeps. Thread-safe."""

    def __init__(self, host: str, path: Path) -> None:
        """Start an agent on it, to prove that it works. Raises OSError or HostError."""
        self._host = host
        self._path = path
        self._lock = threading.Lock()
        self._streams: list[socket.socket] = []
        self._is_closed = False
        self._first: socket.socket | None
        try:
            first = self._ask(ASKED_S, open="agent")
            watch = self._ask(ASKED_S, open="watch")
            said = self._answer(first, READY_S)
            self.about = printable(str(said.get("about")))
            self._by_hand = printable(str(said.get("by_hand")))
            self._answer(watch, READY_S)
        except BaseException:
            self.close()
            raise
        self._first, self._watch = first, watch

    @property
    def is_open(self) -> bool:
        """Whether the connection is neither closed nor lost."""
        if self._is_closed:
            return False
        try:
            self._watch.setblocking(False)
            return bool(self._watch.recv(1))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def open_link(self) -> PersistentLink:
        """Start another agent, whose link ends separately.

        Raises RefusedStreamError or ConnectionLostError.
        """
        return PersistentLink(self, self._agent(), is_alone=False)

    def only_link(self) -> PersistentLink:
        """Return the link to an agent. Closing it closes this process's side of the connection."""
        return PersistentLink(self, self._agent(), is_alone=True)

    def by_hand(self, command: str) -> str:
        """Return the shell command that runs a command on the host with ssh itself."""
        return f"{self._by_hand}{command}"

    def open_socket(self, path: str) -> socket.socket:
        """Open a stream to a Unix socket on the host. Raises RefusedStreamError or ConnectionLostError."""
        return self._open(open="socket", path=path)

    def open_port(self, port: int) -> socket.socket:
        """Open a stream to a TCP port of the host's loopback.

        Raises PortClosedError, RefusedStreamError or ConnectionLostError.
        """
        return self._open(open="port", port=port)

    def open_program(self, words: Sequence[str]) -> socket.socket:
        """Open a stream to the standard input and output of a program. Raises ConnectionLostError."""
        return self._open(open="program", words=list(words))

    def sever(self) -> None:
        """Cut all streams of this process."""
        self._cut()

    def close(self) -> None:
        """Close all streams of this process. The connection itself stays open for the next command."""
        for stream in self._cut():
            stream.close()

    def _cut(self) -> list[socket.socket]:
        """Cut all streams of this process, and return them."""
        with self._lock:
            self._is_closed = True
            streams = [*self._streams]
        for stream in streams:
            with contextlib.suppress(OSError):  # it has ended
                stream.shutdown(socket.SHUT_RDWR)
        return streams

    def _agent(self) -> socket.socket:
        with self._lock:
            first, self._first = self._first, None
        return first or self._open(open="agent")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of a stream into ConnectionLostError. Only the connection server knows the cause."""
        try:
            yield
        except TimeoutError:
            raise
        except OSError as error:
            words = f"{self._host}: the connection broke: it was closed"
            raise ConnectionLostError(self._host, words) from error

    def _open(self, **question: Any) -> socket.socket:
        try:
            with self.errors():
                stream = self._ask(OPEN_S, **question)
                self._answer(stream, OPEN_S)
                return stream
        except TimeoutError as error:
            words = f"{self._host}: no answer within the deadline"
            raise ConnectionLostError(self._host, words) from error

    def _ask(self, timeout_s: float, **question: Any) -> socket.socket:
        """Request a stream. It is usable after `_answer`. Raises OSError or HostError."""
        stream = persistent_socket.connect(self._path, timeout_s)
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._streams = [one for one in self._streams if one.fileno() >= 0]
                self._streams.append(stream)
        if is_closed:
            stream.close()
            raise ConnectionLostError(self._host, f"{self._host}: the connection was closed")
        try:
            persistent_socket.say(stream, **question)
        except BaseException:
            stream.close()
            raise
        return stream

    def _answer(self, stream: socket.socket, timeout_s: float) -> JsonObject:
        """Return the message that comes with a stream. Raises OSError or HostError.

        The connection server must confirm the request at once.
        """
        try:
            persistent_socket.hear(stream)
            stream.settimeout(timeout_s)
            said = persistent_socket.hear(stream)
            if "error" in said:
                raise _error(self._host, said)
        except BaseException:
            stream.close()
            raise
        return said


class PersistentLink(ForwardingOpener):
    """An agent's stream on a persistent connection."""

    def __init__(self, connection: PersistentConnection, stream: socket.socket, *, is_alone: bool) -> None:
        """Take over the stream. With `is_alone`, closing the link closes the connection."""
        super().__init__(connection)
        self._connection = connection
        self._stream = stream
        self._is_alone = is_alone
        self.settimeout = stream.settimeout

    def recv(self, size: int, /) -> bytes:
        """Return some bytes; b"" at the end of the stream."""
        with self._connection.errors():
            return self._stream.recv(size)

    def sendall(self, data: bytes, /) -> None:
        """Send all bytes."""
        with self._connection.errors():
            self._stream.sendall(data)

    def close(self) -> None:
        """Close the link. The agent exits."""
        with contextlib.suppress(OSError):  # another thread may be reading from it
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        if self._is_alone:
            self._connection.close()


@public("HeldRow")
class PersistentState(NamedTuple):
    """A connection that process `pid` keeps for later commands.

    It closes in `left_s` seconds if no command uses it. `users` is the number of commands that use it now.
    """

    host: str
    about: str
    left_s: float
    users: int
    pid: int


class Closing(NamedTuple):
    """The result of `close_all`: the closed connections, and the hosts with a connection in preparation."""

    held: list[PersistentState]
    opening: list[str]


def states() -> list[PersistentState]:
    """Return this user's persistent connections, by host."""
    return sorted(filter(_is_held, filter(None, map(_state, persistent_socket.sockets()))))


def close_all() -> Closing:
    """Close all persistent connections, and wait until their processes have exited.

    A connection in use ends with its commands.
    """
    opening = sorted(filter(None, map(_give_up, persistent_socket.marks())))
    closed = [*filter(None, map(_close, persistent_socket.sockets()))]
    with contextlib.suppress(OSError):
        background.sweep()
    return Closing(sorted(filter(_is_held, closed)), opening)


def _is_held(state: PersistentState) -> bool:
    """Whether it is a connection. Older versions left a standby process, which has no host."""
    return bool(state.host)


def _state(path: Path) -> PersistentState | None:
    """Ask a connection server for its state. Return None if it does not answer."""
    with contextlib.suppress(OSError), persistent_socket.connect(path, LOCAL_S) as stream:
        return _ask(stream, ask="state")
    return None


def _close(path: Path) -> PersistentState | None:
    """Make a connection server exit. If it is unused, wait for its exit, and kill it if it does not exit.

    Return its state, or None if no process listens at the socket.
    """
    try:
        with persistent_socket.connect(path, LOCAL_S) as stream:
            pid, state = user_sockets.check_peer(stream), None
            try:
                state = _ask(stream, ask="close")
                if state is not None and not state.users:
                    stream.recv(1)  # its exit ends the stream
            except TimeoutError:
                state = state or PersistentState(_host_of(pid), "", 0.0, 0, pid)
                _kill(pid)
                path.unlink(missing_ok=True)
            return state
    except OSError:
        return None


def _host_of(pid: int) -> str:
    """Return the name of a connection server's host, from the command line that `leave` gave it."""
    return printable(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[4])


def _ask(stream: socket.socket, **question: Any) -> PersistentState | None:
    """Return a connection server's report of its state, or None if it is malformed. Raises OSError."""
    persistent_socket.say(stream, **question)
    said = persistent_socket.hear(stream)
    try:
        host, about = printable(str(said["host"])), printable(str(said["about"]))
        return PersistentState(host, about, float(said["left_s"]), int(said["users"]), int(said["pid"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _give_up(mark: Path) -> str | None:
    """Kill the process that prepares a connection. Return its host's name.

    Return None if it listens already, or has ended.
    """
    try:
        descriptor = os.open(mark, os.O_RDWR | os.O_NOFOLLOW)
        try:
            mark.unlink()
            if not persistent_socket.is_locked(descriptor):
                return None
            pid, name = strict_json.decode(os.read(descriptor, persistent_socket.MAX_MESSAGE))
            _kill(pid)
            return printable(str(name))
        finally:
            os.close(descriptor)
    except (OSError, ValueError, TypeError):
        return None


def _drop(path: Path) -> None:
    """Remove the socket of a connection server that does not answer. It ends with the commands that use it.

    Kill it if it is stopped.
    """
    with contextlib.suppress(OSError):
        with persistent_socket.connect(path, LOCAL_S) as stream:
            pid = user_sockets.check_peer(stream)
        path.unlink()
        if user_sockets.is_stopped(pid):
            _kill(pid)


def _kill(pid: int) -> None:
    """Kill a process of this user. Wait up to LOCAL_S for its end."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], LOCAL_S)
        finally:
            os.close(descriptor)


def _error(host: str, said: JsonObject) -> HostError:
    """Return an error that a connection server forwards."""
    kind = said["error"] if said["error"] in KINDS else "HostError"
    error: HostError = getattr(errors, kind)(host, str(said.get("message")))
    return error
