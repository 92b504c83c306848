"""The process that holds a connection to a host for the next commands, which `held.py` leaves behind.

It has a connection of its own, made without asking anybody, and an agent that is ready. Each command asks it for streams
over a Unix socket, and it passes bytes on: nothing of them is kept. It ends by itself: after the host's `hold` seconds without a command, when the
connection is lost, when its socket is removed, and after an hour in any case.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher import core_dumps, user_sockets
from launcher.errors import HostError, LaunchError
from launcher.hosts import background, held_socket
from launcher.hosts.agent_file import MAGIC
from launcher.hosts.channel import PING_S, Channel, Link, Socket
from launcher.hosts.held import KINDS
from launcher.hosts.ssh import SshConnection
from launcher.hosts.ssh_config import hops
from launcher.values.host import Host

LOOK_S = 1.0
ALIVE_S = 2.0
"""How long the host may take to answer before a command is given the ready agent."""
ASKED_S = 10.0
"""How long a client may take to say what it wants."""
MOST_AGE_S = 3600.0
"""A connection takes no new commands after this time: a host's key is looked at again now and then."""
NEXT_S = 2.0
"""How long after a command has begun the next agent is started, if the command is not over before."""
PIECE = 1 << 18


def main() -> None:
    """Hold a connection to the host on standard input. Whatever stands in the way, nothing is held."""
    core_dumps.turn_off()
    host = Host.model_validate_json(sys.stdin.buffer.read())
    mark = Path(sys.argv[2])
    with contextlib.suppress(LaunchError, OSError):
        _hold(host, mark)
    mark.unlink(missing_ok=True)
    os._exit(0)  # threads may wait for what never comes


def _hold(host: Host, mark: Path) -> None:
    began = time.monotonic()
    route = hops(host)
    path = held_socket.socket_of(host, route)
    if path is None:
        return
    if background.is_answered(path):
        return
    connection = SshConnection(host, route)
    try:
        holder = _Holder(host, connection, began)
        if connection.needs_person or held_socket.socket_of(host, hops(host)) != path:
            return  # what the connection was checked by has changed meanwhile
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
    """A connection, the agent that is ready on it, and the clients that use it."""

    def __init__(self, host: Host, connection: SshConnection, began: float) -> None:
        """Start the first agent. Raises HostError."""
        self._host = host
        self._connection = connection
        self._began = began
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        """Told when a client leaves."""
        self._users = 0
        self._idle_since = time.monotonic()
        self._is_over = False
        self._spare: _Spare | None = self._loaded()

    def serve(self, listener: background.Listener) -> None:
        """Serve clients until the time is up, the connection is lost, or the socket is no longer ours."""
        self._idle_since = time.monotonic()
        self._listener = listener.socket
        self._listener.settimeout(LOOK_S)
        threading.Thread(target=self._keep_ready, daemon=True).start()
        while not self._is_over and self._connection.is_open and self._left_s() > 0 and listener.is_ours():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # `_tell` has woken us
                return
            with self._lock:
                self._users += 1
            threading.Thread(target=self._attend, args=(client,), daemon=True).start()

    def finish(self) -> None:
        """Wait for the clients that are left, as long as the connection works."""
        with self._lock:
            spare, self._spare, self._is_over = self._spare, None, True
        if spare is not None:
            spare.close()
        while self._connection.is_open and self._users:
            time.sleep(LOOK_S / 10)

    def _left_s(self, besides: int = 0) -> float:
        """Return for how long the connection is held, if nobody comes meanwhile; so many clients do not count."""
        now = time.monotonic()
        with self._lock:
            since = now if self._users > besides else self._idle_since
        return min(since + self._host.hold, self._began + MOST_AGE_S) - now

    def _attend(self, client: socket.socket) -> None:
        """Answer one client, and pass its bytes on until it or the host ends."""
        is_user = False
        try:
            with client, contextlib.suppress(OSError, EOFError):
                client.settimeout(ASKED_S)
                user_sockets.check_peer(client)
                question = held_socket.hear(client)
                if question.get("ask") in ("state", "close"):
                    self._tell(client, is_last=question["ask"] == "close")
                    return
                is_user = True
                client.settimeout(None)
                held_socket.say(client, is_asked=True)
                try:
                    self._open(client, question)
                except HostError as error:
                    kind = type(error).__name__
                    held_socket.say(client, error=kind if kind in KINDS else "HostError", message=str(error))
        finally:
            with self._left:
                self._users -= 1
                if is_user:
                    self._idle_since = time.monotonic()
                self._left.notify_all()

    def _tell(self, client: socket.socket, *, is_last: bool) -> None:
        """Say what is held, and end if this `is_last`."""
        left_s = max(0.0, self._left_s(besides=1))
        with self._lock:
            users = self._users - 1
        values = {"host": self._host.name, "about": self._connection.about, "left_s": left_s}
        held_socket.say(client, **values, users=users, pid=os.getpid())
        if is_last:
            os.dup(client.fileno())  # nobody closes it: the end of this process does, and tells the other end
            self._is_over = True
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `serve`

    def _open(self, client: socket.socket, question: dict[str, Any]) -> None:
        """Open what a client asks for, and pass bytes on. Raises HostError."""
        connection, what = self._connection, question.get("open")
        if what == "agent":
            spare = self._ready_agent()
            greeting = {"about": connection.about, "by_hand": connection.by_hand("")}
            try:
                held_socket.say(client, **greeting)
                client.sendall(MAGIC + f"have {spare.root_id}".strip().encode() + b"\n")
            except BaseException:
                spare.close()
                raise
            _pass_on(client, spare.link, lambda: None)
        elif what == "watch":
            held_socket.say(client)
            while self._connection.is_open and not _has_left(client, LOOK_S):
                pass
        else:
            stream = self._stream(question)
            held_socket.say(client)
            _pass_on(client, stream, lambda: stream.shutdown(socket.SHUT_WR))

    def _stream(self, question: dict[str, Any]) -> Socket:
        match question:
            case {"open": "socket", "path": str(path)}:
                return self._connection.open_socket(path)
            case {"open": "port", "port": int(port)}:
                return self._connection.open_port(port)
            case {"open": "program", "words": [*words]}:
                return self._connection.open_program([str(word) for word in words])
        raise HostError(self._host.name, f"{self._host.name}: the holder knows no such question")

    def _ready_agent(self) -> _Spare:
        """Return an agent that just has answered: the one that is ready, or a new one. Raises HostError.

        A connection that does not answer takes no more commands.
        """
        with self._lock:
            spare, self._spare = self._spare, None
        threading.Thread(target=self._make_ready, daemon=True).start()
        if spare is not None:
            try:
                if spare.answers(ALIVE_S):
                    return spare
            except HostError:
                self._is_over = True
                raise
            spare.close()  # its root was replaced: a new agent looks at the new one
        return _Spare(self._host.name, self._connection)

    def _make_ready(self) -> None:
        """Start the agent for the next command. One that sshd refuses is started when it is asked for."""
        with self._left:  # its start would slow down a short command that has just begun
            self._left.wait_for(lambda: not self._users or self._is_over, NEXT_S)
        with contextlib.suppress(HostError):
            spare = self._loaded()
            with self._lock:
                if self._spare is None and not self._is_over:
                    self._spare = spare
                    return
            spare.close()

    def _loaded(self) -> _Spare:
        spare = _Spare(self._host.name, self._connection)
        spare.load()
        return spare

    def _keep_ready(self) -> None:
        """Tell the agent that is ready now and then that we are there."""
        while True:
            time.sleep(PING_S)
            with self._lock:
                spare = self._spare
            if spare is not None:
                with contextlib.suppress(HostError):  # then it does not answer the next command either
                    spare.answers(PING_S)


class _Spare:
    """An agent that has greeted, and waits for a client."""

    def __init__(self, host: str, connection: SshConnection) -> None:
        """Start it. Raises HostError."""
        self.link: Link = connection.open_link()
        self._channel = Channel(host, self.link, pings=False)
        self.root_id = self._channel.root_id

    def load(self) -> None:
        """Have it load what answers a command, which would wait for that otherwise. Raises HostError."""
        self._channel.load()

    def answers(self, deadline_s: float) -> bool:
        """Whether its root is still the one that it has greeted with. Raises HostError if it does not answer in time."""
        return self._channel.has_same_root(deadline_s)

    def close(self) -> None:
        """Let it leave."""
        self._channel.close()


def _pass_on(client: socket.socket, stream: Socket | Link, end_sending: Callable[[], None]) -> None:
    """Pass bytes on in both directions until one side has ended, and close the host's."""
    stream.settimeout(None)

    def upward() -> None:
        with contextlib.suppress(OSError, EOFError, HostError):
            while piece := client.recv(PIECE):
                stream.sendall(piece)
                del piece
            end_sending()
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
    """Whether a client has closed its end within the time, not only ended what it sends."""
    look = select.poll()
    look.register(client, 0)  # with no events asked for, poll still reports a full hang-up
    return bool(look.poll(None if wait_s is None else wait_s * 1000))
