"""The process that holds a connection to a host for the next commands, which `held.py` leaves behind.

It has a connection of its own, made without asking anybody, and an agent that is ready. Each command asks it for streams
over a Unix socket, and it passes bytes on: nothing of them is kept. An agent that a command has only asked to read serves the next one. It ends by itself: after the host's `hold` seconds without a command, when the
connection is lost, when its socket is removed, and after an hour in any case.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from launcher import core_dumps, user_sockets
from launcher.errors import HostError, LaunchError
from launcher.hosts import background, held_socket
from launcher.hosts.agent_file import MAGIC
from launcher.hosts.channel import MAX_NOISE, PING_S, Channel, Link, Socket
from launcher.hosts.held import KINDS
from launcher.hosts.ssh import SshConnection
from launcher.hosts.ssh_config import hops
from launcher.remote.record import strict_json
from launcher.values.host import Host

LOOK_S = 1.0
ALIVE_S = 2.0
"""How long the host may take to answer before a command is given the ready agent."""
ASKED_S = 10.0
"""How long a client may take to say what it wants."""
MOST_AGE_S = 3600.0
"""A connection takes no new commands after this time: a host's key is looked at again now and then."""
MOST_LENT_S = 60.0
"""An agent older than this serves no further command: it has the variables that the host's login set when it began."""
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
        self._listener.setblocking(False)
        threading.Thread(target=self._keep_ready, daemon=True).start()
        while not self._is_over and self._connection.is_open and self._left_s() > 0 and listener.is_ours():
            if not select.select([self._listener], [], [], LOOK_S)[0]:
                continue
            try:
                client, _ = self._listener.accept()
            except OSError:  # nobody is there: `_tell` has woken us
                continue
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
            farewell = _farewell(self._host.name, question)
            spare = self._ready_agent()
            greeting = {"about": connection.about, "by_hand": connection.by_hand("")}
            try:
                held_socket.say(client, **greeting)
                client.sendall(MAGIC + f"have {spare.root_id}".strip().encode() + b"\n")
            except BaseException:
                spare.close()
                raise
            if _Loan(spare.link, client, farewell).ends_idle():
                if spare.age_s < MOST_LENT_S:
                    self._keep(spare)
                else:
                    spare.close()
        elif what == "watch":
            held_socket.say(client)
            while self._connection.is_open and not _has_left(client, LOOK_S):
                pass
        else:
            stream = self._stream(question)
            held_socket.say(client)
            _pass_on(client, stream)

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
        """Start the agent for the next command, unless one comes back. One that sshd refuses is started when it is asked for."""
        with self._left:  # its start would slow down a short command that has just begun
            self._left.wait_for(lambda: self._spare is not None or not self._users or self._is_over, NEXT_S)
            if self._spare is not None or self._is_over:
                return
        with contextlib.suppress(HostError):
            self._keep(self._loaded())

    def _keep(self, spare: _Spare) -> None:
        """Have an agent ready for the next command, if none is."""
        with self._left:
            if self._spare is None and not self._is_over:
                self._spare = spare
                self._left.notify_all()
                return
        spare.close()

    def _loaded(self) -> _Spare:
        spare = _Spare(self._host.name, self._connection)
        spare.load()
        return spare

    def _keep_ready(self) -> None:
        """Tell the agent that is ready now and then that we are there; replace one that is old.

        The old one leaves first: sshd may allow no other beside it. While it still counts it, it is asked again at the next turn.
        """
        is_due = False
        while not self._is_over:
            time.sleep(PING_S)
            with self._lock:
                spare, self._spare = self._spare, None
            if spare is not None:
                is_due = spare.age_s > MOST_LENT_S
                if is_due:
                    spare.close()
                else:
                    with contextlib.suppress(HostError):  # then it does not answer the next command either
                        spare.answers(PING_S)
                    self._keep(spare)
            if is_due:
                with contextlib.suppress(HostError):
                    self._keep(self._loaded())
                    is_due = False


class _Spare:
    """An agent that has greeted, and waits for a client."""

    def __init__(self, host: str, connection: SshConnection) -> None:
        """Start it. Raises HostError."""
        self._began = time.monotonic()
        self.link: Link = connection.open_link()
        self._channel = Channel(host, self.link, pings=False)
        self.root_id = self._channel.root_id

    @property
    def age_s(self) -> float:
        """For how many seconds it is there."""
        return time.monotonic() - self._began

    def load(self) -> None:
        """Have it load what answers a command, which would wait for that otherwise. Raises HostError."""
        self._channel.load()

    def answers(self, deadline_s: float) -> bool:
        """Whether its root is still the one that it has greeted with. Raises HostError if it does not answer in time."""
        return self._channel.has_same_root(deadline_s)

    def close(self) -> None:
        """Let it leave."""
        self._channel.close()


class _Loan:
    """An agent in the hands of a client, whose bytes are passed on in both directions."""

    def __init__(self, link: Link, client: socket.socket, farewell: bytes) -> None:
        """Begin. A client that leaves the agent idle says the farewell as its last word."""
        self._link = link
        self._client = client
        self._farewell = farewell
        self._is_back = threading.Event()
        self._is_over = threading.Event()
        self._link.settimeout(None)

    def ends_idle(self) -> bool:
        """Pass on until one side has ended. Return whether the agent is idle, for another client; if not, it is let go."""
        thread = threading.Thread(target=self._upward, daemon=True)
        thread.start()
        is_idle = False
        try:
            while (piece := self._link.recv(PIECE)) and not self._is_back.is_set():
                self._client.sendall(piece)
                del piece
            with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):  # nonsense
                is_idle = bool(piece) and self._says_it_is_idle(piece)
            return is_idle
        finally:
            self._is_over.set()
            with contextlib.suppress(OSError):  # so that the other thread ends
                self._client.shutdown(socket.SHUT_RDWR)
            thread.join()
            if not is_idle:
                self._link.close()

    def _upward(self) -> None:
        """Pass on what the client says. After its farewell, ask the agent whether it is idle."""
        with contextlib.suppress(OSError, EOFError, HostError):
            while piece := self._client.recv(PIECE):
                if piece.endswith(self._farewell):
                    self._is_back.set()
                    self._link.sendall(piece[: -len(self._farewell)] + _IS_IDLE)
                    if self._is_over.wait(ALIVE_S):
                        return
                    break
                self._link.sendall(piece)
                del piece
        self._link.close()

    def _says_it_is_idle(self, said: bytes) -> bool:
        """Whether the agent answers that it is idle. What it says before that, nobody waits for any more."""
        while len(said) <= MAX_NOISE:
            *lines, rest = said.split(b"\n")
            for line in lines:
                answer = strict_json.decode(line)
                if answer["id"] == _ASKER:
                    return not rest and answer["ok"] == {"idle": True}
            if not (piece := self._link.recv(PIECE)):
                return False
            said = rest + piece
        return False


_ASKER = "holder"
_IS_IDLE = b'{"id": "%s", "verb": "idle"}\n' % _ASKER.encode()


def _farewell(host: str, question: dict[str, Any]) -> bytes:
    """Return what a client will say last to leave its agent idle: bytes that nobody says by chance. Raises HostError."""
    written = question.get("farewell")
    if not isinstance(written, str) or not re.fullmatch("[0-9a-f]{32}", written):
        raise HostError(host, f"{host}: the holder knows no such question")
    return bytes.fromhex(written)


def _pass_on(client: socket.socket, stream: Socket) -> None:
    """Pass bytes on in both directions until one side has ended, and close the host's."""
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
    """Whether a client has closed its end within the time, not only ended what it sends."""
    look = select.poll()
    look.register(client, 0)  # with no events asked for, poll still reports a full hang-up
    return bool(look.poll(None if wait_s is None else wait_s * 1000))
