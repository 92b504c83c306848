"""The connections that are held between commands: this one's use of them, and what it leaves for the next.

At the end of a command that has connected to one host, a process in the background (`holder.py`) connects to it again, with the
keys that need nobody, and keeps that connection for the next command. A second handshake of its own, rather than ours handed on,
so that the first one is as it always was: prompts and errors belong to the command, and nothing of it outlives it.
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
from launcher.transport.channel import Passing
from launcher.transport.ssh.ssh_config import Hop
from launcher.values.host import Host
from launcher.values.public_result import public

ASKED_S = 1.5
"""How long a holder may take to say that it was asked; one that is stopped never does."""
READY_S = 5.0
"""How long a held connection may take to show that it works; then a new one is made."""
OPEN_S = 90.0
"""How long it may take to open one more stream, once it is in use: an agent has to start."""
LOCAL_S = 2.0
"""How long a holder may take to say something of itself, and to end then."""
KINDS = ("ConnectionLostError", "RefusedStreamError", "NobodyListensError", "UnreachableError", "HostError")
"""The errors that a holder passes on."""
_LOG = logging.getLogger(__name__)
_PROGRAM = "from launcher.transport.connection_server import main; main()"
_WIPING = {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "85"}
"""With these, glibc overwrites what a holder frees: what it has passed on is not in its memory any more."""
_spoken: dict[str, Host | None] = {}
"""The hosts over SSH that this process has spoken to; None where nothing is to be left behind."""


def find(host: Host, route: Sequence[Hop]) -> HeldConnection | None:
    """Return the connection that is held for a host, if there is one and it works."""
    if not host.hold:
        return None
    path = persistent_socket.socket_of(host, route)
    if path is None or not path.exists():
        return None
    try:
        connection = HeldConnection(host.name, path)
    except (OSError, HostError) as error:
        if isinstance(error, TimeoutError):
            _drop(path)
        _LOG.debug("%s: the held connection is not used: %s", host.name, error)
        return None
    _LOG.debug("%s: by the connection that is held", host.name)
    _spoken[host.name] = None
    return connection


def is_any() -> bool:
    """Whether any connection is held, so that looking for one may be worth it."""
    return bool(persistent_socket.sockets())


def note(host: Host, *, needs_person: bool) -> None:
    """Note that this process has connected to a host by itself, and whether somebody had to do something for that."""
    _spoken[host.name] = host if host.hold and not needs_person else None


def leave() -> None:
    """Let a connection be held for the next command, if this one has spoken to a single host. This waits for nothing."""
    hosts = [*_spoken.values()]
    _spoken.clear()
    if len(hosts) != 1 or hosts[0] is None or not user_sockets.KNOWS_PEERS:
        return
    background.begin(_PROGRAM, hosts[0].name, hosts[0].model_dump_json().encode(), _WIPING)


class HeldConnection:
    """A connection that another process holds, with streams of our own on it. Any thread may use it."""

    def __init__(self, host: str, path: Path) -> None:
        """Start an agent on it, by which it shows that it works. Raises OSError or HostError."""
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

    def open_link(self) -> HeldLink:
        """Start one more agent, whose link ends alone. Raises RefusedStreamError or ConnectionLostError."""
        return HeldLink(self, self._agent(), is_alone=False)

    def only_link(self) -> HeldLink:
        """Return the link to an agent. Closing it closes our side of the connection."""
        return HeldLink(self, self._agent(), is_alone=True)

    def by_hand(self, command: str) -> str:
        """Return the shell command that runs a command there with ssh itself."""
        return f"{self._by_hand}{command}"

    def open_socket(self, path: str) -> socket.socket:
        """Open a stream to a Unix socket on the host. Raises RefusedStreamError or ConnectionLostError."""
        return self._open(open="socket", path=path)

    def open_port(self, port: int) -> socket.socket:
        """Open a stream to a TCP port of the host's loopback. Raises NobodyListensError, RefusedStreamError or ConnectionLostError."""
        return self._open(open="port", port=port)

    def open_program(self, words: Sequence[str]) -> socket.socket:
        """Open a stream to the standard input and output of a program. Raises ConnectionLostError."""
        return self._open(open="program", words=list(words))

    def sever(self) -> None:
        """Cut all our streams."""
        self._cut()

    def close(self) -> None:
        """Close all our streams. The connection itself is held for the next command."""
        for stream in self._cut():
            stream.close()

    def _cut(self) -> list[socket.socket]:
        """Cut all our streams, and return them."""
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
        """Say that the connection broke, around what uses one of its streams. Why, only the holder knew."""
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
        """Ask for a stream, which is ours once that is answered. Raises OSError or HostError."""
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
        """Return what is said with a stream. The holder has to say at once that it was asked. Raises OSError or HostError."""
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


class HeldLink(Passing):
    """An agent's stream on a held connection."""

    def __init__(self, connection: HeldConnection, stream: socket.socket, *, is_alone: bool) -> None:
        """Take over the stream. If it `is_alone`, the connection is closed with it."""
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
        """Hang up: the agent leaves."""
        with contextlib.suppress(OSError):  # another thread may be reading from it
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        if self._is_alone:
            self._connection.close()


@public("HeldRow")
class HeldState(NamedTuple):
    """A connection that process `pid` holds for the next command: for `left_s` seconds more, if `users` do not use it just now."""

    host: str
    about: str
    left_s: float
    users: int
    pid: int


class Closing(NamedTuple):
    """What `close_all` has ended: connections that were held, and the hosts to which one was just being made."""

    held: list[HeldState]
    opening: list[str]


def states() -> list[HeldState]:
    """Return the connections that are held for this user, by host."""
    return sorted(filter(_is_held, filter(None, map(_state, persistent_socket.sockets()))))


def close_all() -> Closing:
    """Hold no connection any longer, and return when the processes have ended that held one. One that is in use ends with its commands."""
    opening = sorted(filter(None, map(_give_up, persistent_socket.marks())))
    closed = [*filter(None, map(_close, persistent_socket.sockets()))]
    with contextlib.suppress(OSError):
        background.sweep()
    return Closing(sorted(filter(_is_held, closed)), opening)


def _is_held(state: HeldState) -> bool:
    """Whether it is a connection. A process that stands by, which older versions left, has no host."""
    return bool(state.host)


def _state(path: Path) -> HeldState | None:
    """Ask a holder about itself; None if it does not answer."""
    with contextlib.suppress(OSError), persistent_socket.connect(path, LOCAL_S) as stream:
        return _told(stream, ask="state")
    return None


def _close(path: Path) -> HeldState | None:
    """Have a holder end, and wait for that if nobody uses it; None if nobody listens there. One that does not end is killed."""
    try:
        with persistent_socket.connect(path, LOCAL_S) as stream:
            pid, state = user_sockets.check_peer(stream), None
            try:
                state = _told(stream, ask="close")
                if state is not None and not state.users:
                    stream.recv(1)  # its end ends the stream
            except TimeoutError:
                state = state or HeldState(_host_of(pid), "", 0.0, 0, pid)
                _kill(pid)
                path.unlink(missing_ok=True)
            return state
    except OSError:
        return None


def _host_of(pid: int) -> str:
    """Return the name of a holder's host, which `leave` has put on its command line."""
    return printable(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[4])


def _told(stream: socket.socket, **question: Any) -> HeldState | None:
    """Return what a holder says of itself; None if that is nonsense. Raises OSError."""
    persistent_socket.say(stream, **question)
    said = persistent_socket.hear(stream)
    try:
        host, about = printable(str(said["host"])), printable(str(said["about"]))
        return HeldState(host, about, float(said["left_s"]), int(said["users"]), int(said["pid"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _give_up(mark: Path) -> str | None:
    """End the process that makes a connection, and return the host's name; None if it listens already, or has ended."""
    try:
        descriptor = os.open(mark, os.O_RDWR | os.O_NOFOLLOW)
        try:
            mark.unlink()
            if not persistent_socket.is_locked(descriptor):
                return None
            pid, name = strict_json.decode(os.read(descriptor, persistent_socket.MOST_SAID))
            _kill(pid)
            return printable(str(name))
        finally:
            os.close(descriptor)
    except (OSError, ValueError, TypeError):
        return None


def _drop(path: Path) -> None:
    """Take away the socket of a holder that does not answer: it ends with the commands that use it. One that is stopped ends now."""
    with contextlib.suppress(OSError):
        with persistent_socket.connect(path, LOCAL_S) as stream:
            pid = user_sockets.check_peer(stream)
        path.unlink()
        if user_sockets.is_stopped(pid):
            _kill(pid)


def _kill(pid: int) -> None:
    """Kill a process of ours, and wait for its end, for a while."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], LOCAL_S)
        finally:
            os.close(descriptor)


def _error(host: str, said: JsonObject) -> HostError:
    """Return an error that a holder passes on."""
    kind = said["error"] if said["error"] in KINDS else "HostError"
    error: HostError = getattr(errors, kind)(host, str(said.get("message")))
    return error
