"""The background process that keeps a connection to a host open for later commands.

`persistent_connection.py` starts it. It makes its own connection, without asking the user. Commands ask it
for streams over a Unix socket; the first stream of each command leads to a new agent. It forwards bytes and
stores none. It exits after the host's `hold` seconds without a command, when the connection is lost, when its
socket is removed, and after an hour in any case.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import time
from pathlib import Path

from launcher.base import core_dumps, user_sockets
from launcher.base.json_file import JsonObject
from launcher.errors import HostError, LaunchError
from launcher.transport import background, persistent_socket
from launcher.transport.agent_file import MAGIC
from launcher.transport.channel import MAX_NOISE, Socket
from launcher.transport.persistent_connection import KINDS
from launcher.transport.ssh.ssh import SshConnection
from launcher.transport.ssh.ssh_config import hops
from launcher.values.host import Host

LOOK_S = 1.0
ASKED_S = 10.0
"""The seconds that a client may take to send its request."""
MAX_AGE_S = 3600.0
"""The age in seconds after which a connection takes no new commands. Host keys are thus checked again."""
AGENT_S = 90.0
"""The seconds that a login may take to start an agent."""
PIECE = 1 << 18


def main() -> None:
    """Keep a connection open to the host that standard input names. On any failure, exit."""
    core_dumps.turn_off()
    host = Host.model_validate_json(sys.stdin.buffer.read())
    mark = Path(sys.argv[2])
    with contextlib.suppress(LaunchError, OSError):
        _hold(host, mark)
    mark.unlink(missing_ok=True)
    os._exit(0)  # threads may be blocked forever


def _hold(host: Host, mark: Path) -> None:
    began = time.monotonic()
    route = hops(host)
    path = persistent_socket.socket_of(host, route)
    if path is None:
        return
    if background.is_answered(path):
        return
    connection = SshConnection(host, route)
    try:
        holder = _Holder(host, connection, began)
        if connection.needs_person or persistent_socket.socket_of(host, hops(host)) != path:
            return  # the settings that decided the route and the checks have changed
        os.chdir("/")
        listener = background.Listener(path, mark)
        try:
            holder.serve(listener)
        finally:
            listener.close()
        holder.finish()
    finally:
        connection.close()


class _Holder:
    """A connection, and the clients that use it."""

    def __init__(self, host: Host, connection: SshConnection, began: float) -> None:
        """Take over a connection. `began` is its start on the monotonic clock."""
        self._host = host
        self._connection = connection
        self._began = began
        self._lock = threading.Lock()
        self._users = 0
        self._idle_since = time.monotonic()
        self._is_over = False

    def serve(self, listener: background.Listener) -> None:
        """Serve clients until the time is up, the connection is lost, or the socket is another process's."""
        self._idle_since = time.monotonic()
        self._listener = listener.socket
        self._listener.setblocking(False)
        while not self._is_over and self._connection.is_open and self._left_s() > 0 and listener.is_ours():
            if not select.select([self._listener], [], [], LOOK_S)[0]:
                continue
            try:
                client, _ = self._listener.accept()
            except OSError:  # no client: `_tell` has woken this thread
                continue
            with self._lock:
                self._users += 1
            threading.Thread(target=self._attend, args=(client,), daemon=True).start()

    def finish(self) -> None:
        """Wait for the remaining clients, while the connection works."""
        while self._connection.is_open and self._users:
            time.sleep(LOOK_S / 10)

    def _left_s(self, besides: int = 0) -> float:
        """Return the seconds for which the connection stays open without new clients.

        `besides` is a number of clients that do not count.
        """
        now = time.monotonic()
        with self._lock:
            since = now if self._users > besides else self._idle_since
        return min(since + self._host.hold, self._began + MAX_AGE_S) - now

    def _attend(self, client: socket.socket) -> None:
        """Answer one client, and forward its bytes until the client or the host ends."""
        is_user = False
        try:
            with client, contextlib.suppress(OSError, EOFError):
                client.settimeout(ASKED_S)
                user_sockets.check_peer(client)
                question = persistent_socket.hear(client)
                if question.get("ask") in ("state", "close"):
                    self._tell(client, is_last=question["ask"] == "close")
                    return
                is_user = True
                client.settimeout(None)
                persistent_socket.say(client, is_asked=True)
                try:
                    self._open(client, question)
                except HostError as error:
                    kind = type(error).__name__
                    persistent_socket.say(
                        client, error=kind if kind in KINDS else "HostError", message=str(error)
                    )
        finally:
            with self._lock:
                self._users -= 1
                if is_user:
                    self._idle_since = time.monotonic()

    def _tell(self, client: socket.socket, *, is_last: bool) -> None:
        """Report the state of the connection. With `is_last`, stop serving."""
        left_s = max(0.0, self._left_s(besides=1))
        with self._lock:
            users = self._users - 1
        values = {"host": self._host.name, "about": self._connection.about, "left_s": left_s}
        persistent_socket.say(client, **values, users=users, pid=os.getpid())
        if is_last:
            os.dup(client.fileno())  # never closed, so that the exit of this process informs the client
            self._is_over = True
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `serve`

    def _open(self, client: socket.socket, question: JsonObject) -> None:
        """Open the requested stream, and forward its bytes. Raises HostError."""
        connection, what = self._connection, question.get("open")
        if what == "agent":
            link = connection.open_link()
            try:
                said = _greeting(self._host.name, link)
                persistent_socket.say(client, about=connection.about, by_hand=connection.by_hand(""))
                client.sendall(said)
            except BaseException:
                link.close()
                raise
            _pass_on(client, link)
        elif what == "watch":
            persistent_socket.say(client)
            while self._connection.is_open and not _has_left(client, LOOK_S):
                pass
        else:
            stream = self._stream(question)
            persistent_socket.say(client)
            _pass_on(client, stream)

    def _stream(self, question: JsonObject) -> Socket:
        match question:
            case {"open": "socket", "path": str(path)}:
                return self._connection.open_socket(path)
            case {"open": "port", "port": int(port)}:
                return self._connection.open_port(port)
            case {"open": "program", "words": [*words]}:
                return self._connection.open_program([str(word) for word in words])
        raise HostError(
            self._host.name, f"{self._host.name}: the connection server does not know this request"
        )


def _greeting(host: str, link: Socket) -> bytes:
    """Return a login's output up to the agent's start. Raises HostError if no agent starts in time.

    The error contains the output.
    """
    deadline = time.monotonic() + AGENT_S
    said = b""
    while MAGIC not in said:
        link.settimeout(max(LOOK_S, deadline - time.monotonic()))
        said += link.recv(PIECE)
        if len(said) > MAX_NOISE or time.monotonic() > deadline:
            raise HostError(host, f"{host}: its login prints endless output, and no agent answered")
    return said


def _pass_on(client: socket.socket, stream: Socket) -> None:
    """Forward bytes in both directions until one side has ended, then close the host's stream."""
    stream.settimeout(None)

    def upward() -> None:
        with contextlib.suppress(OSError, EOFError, HostError):
            while piece := client.recv(PIECE):
                stream.sendall(piece)
                del piece
            stream.shutdown(socket.SHUT_WR)
            while not _has_left(client, None):
                pass
        stream.close()

    thread = threading.Thread(target=upward, daemon=True)
    thread.start()
    try:
        while piece := stream.recv(PIECE):
            client.sendall(piece)
            del piece
        client.shutdown(socket.SHUT_WR)
        thread.join()
    finally:
        with contextlib.suppress(OSError):  # so that the other thread ends
            client.shutdown(socket.SHUT_RDWR)
        stream.close()


def _has_left(client: socket.socket, wait_s: float | None) -> bool:
    """Whether a client has closed both directions within the time, and not only its sending one."""
    look = select.poll()
    look.register(client, 0)  # with no events requested, poll still reports a full hang-up
    return bool(look.poll(None if wait_s is None else wait_s * 1000))
