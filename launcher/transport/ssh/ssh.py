"""A host over SSH, with Fabric: one connection with a channel for each agent.

Host keys are always checked.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import fabric
import paramiko
from cryptography.exceptions import InvalidTag

from launcher.base.text import printable
from launcher.errors import (
    ConnectionLostError,
    HostError,
    PortClosedError,
    RefusedStreamError,
    UnreachableError,
)
from launcher.transport.agent_file import MAGIC, shell_command, shell_word
from launcher.transport.resolving import SilentResolverError
from launcher.transport.ssh.ssh_config import Hop, hops
from launcher.transport.ssh.ssh_keys import AUTH_S, KeyLogin
from launcher.transport.ssh.ssh_streamlocal import open_streamlocal
from launcher.transport.ssh.ssh_trust import Trust
from launcher.transport.ssh.ssh_wire import OrderedTransport, TurnedAwayError, Wire, open_wire
from launcher.transport.tcp import CONNECT_S, SourceError
from launcher.values.host import Host

KEEPALIVE_S = 10
WINDOW_BYTES = 16 * 1024 * 1024
_NO_GREETING = "Error reading SSH protocol banner"
"""paramiko's message for a server that does not greet like an SSH server."""
START_UP_FILES = "~/.bashrc, ~/.zshenv, ~/.cshrc or another start-up file of that shell"
STATUS_S = 2.0
"""The seconds by which a program's exit status may follow the end of its output."""
SAID_LINES, MAX_MESSAGE, MAX_HEARD = 3, 300, 4096
"""The most lines and characters of a login's output that are shown, and the most bytes of it that are kept."""
FORBIDDEN, UNREACHED = 1, 2  # a server's reasons to refuse a channel: RFC 4254, 5.1


class SshConnection:
    """A connection to a host, through its hops. `about` names the user, the address and the host key.

    Thread-safe.
    """

    def __init__(self, host: Host, route: Sequence[Hop] | None = None) -> None:
        """Connect, and check every hop's key. `route` are its hops, if they are already known.

        Raises BadFileError, UnreachableError, AuthRefusedError or HostKeyError.
        """
        self._host = host
        self._wires: list[Wire] = []
        self._clients: list[paramiko.SSHClient] = []
        self._is_closed = threading.Event()
        self._opening = threading.Lock()
        """Open channels one at a time: paramiko stores one refusal per connection, for any request."""
        self.needs_person = False
        """Whether the user was asked for a passphrase, a touch or a confirmation."""
        route = hops(host) if route is None else route
        try:
            for number, hop in enumerate(route):
                transport = self._open(hop, route[number - 1] if number else None, is_last=hop is route[-1])
        except BaseException:
            self._hang_up()
            raise
        self._transport = transport
        self._hop = hop
        self.about = f"{hop.user}@{hop.address}, key {self._key.fingerprint}"
        if len(route) > 1:
            self.about += f", through {', '.join(jump.alias for jump in route[:-1])}"
        threading.Thread(
            target=self._keep_alive, args=(transport,), name=f"alive {host.name}", daemon=True
        ).start()
        for wire in self._wires:
            wire.watch()

    @property
    def is_open(self) -> bool:
        """Whether the connection is neither closed nor lost."""
        return not self._is_closed.is_set() and self._transport.is_active()

    def start_agent(self, *, is_first: bool) -> paramiko.Channel:
        """Start an agent. Return the stream to it, which counts as one of sshd's sessions.

        Raises RefusedStreamError if sshd allows no more sessions (MaxSessions). Other errors raise
        UnreachableError if it `is_first`, else ConnectionLostError.
        """
        host, who = self._host, _who(self._host, self._hop, is_last=True)
        with (
            self._opening,
            _errors(host, self._hop, who) if is_first else self.errors(),
            _deadline(self._transport),
        ):
            try:
                channel = self._transport.open_session(window_size=WINDOW_BYTES, timeout=CONNECT_S)
            except paramiko.ChannelException as error:
                words = f"{who}: sshd opens no more sessions on this connection (MaxSessions)"
                raise RefusedStreamError(host.name, words) from error
            channel.exec_command(shell_command(host.python, host.root))
        return channel

    def no_agent(self, channel: paramiko.Channel, said: bytes, waited_s: float | None) -> ConnectionLostError:
        """Return the error for a login shell that ended, or ran for `waited_s` seconds, without an agent."""
        host = self._host
        while channel.recv_stderr_ready():
            said += channel.recv_stderr(MAX_HEARD)
        if waited_s is None:
            channel.status_event.wait(STATUS_S)
            status = channel.exit_status
            words = f"its login shell ended{f' with exit status {status}' if status >= 0 else ''} before an agent began"
            asks = "end it, or start another program"
        else:
            words = f"its login shell has begun no agent within {waited_s:.0f} s"
            asks = "start another shell, or wait for input"
        lines = [printable(line) for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
        words += (
            f"; it said: {' / '.join(lines[-SAID_LINES:])[-MAX_MESSAGE:]}" if lines else ", without output"
        )
        return ConnectionLostError(
            host.name,
            f"{host.name}: {words}\n  does {START_UP_FILES} {asks}?   try   {host.by_hand('true')}",
        )

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Add the reason why the connection broke to errors of its channels."""
        return _channel_errors(self._host, self._transport)

    def open_link(self) -> SshLink:
        """Start another agent, with a link that ends separately.

        Raises RefusedStreamError or ConnectionLostError.
        """
        return SshLink(self, is_alone=False)

    def only_link(self) -> SshLink:
        """Start the only agent.

        The connection ends with its link. Raises UnreachableError or RefusedStreamError.
        """
        return SshLink(self, is_alone=True)

    def by_hand(self, command: str) -> str:
        """Return the shell command that runs a command on the host with ssh itself."""
        return self._host.by_hand(command)

    def open_socket(self, path: str) -> paramiko.Channel:
        """Open a stream to a Unix socket on the host. It does not count as one of sshd's sessions.

        Raises RefusedStreamError if sshd forbids it or no process listens there, ConnectionLostError if the
        link is lost.
        """
        with self._opening, self.errors(), _deadline(self._transport):
            try:
                return open_streamlocal(self._transport, path, CONNECT_S)
            except paramiko.ChannelException as error:
                forbidden = "sshd forbids it (AllowStreamLocalForwarding no)"
                why = {
                    FORBIDDEN: forbidden,
                    UNREACHED: f"no process listens on it, or {forbidden}",
                }.get(error.code, error.text)
                raise RefusedStreamError(self._host.name, f"{self._host.name}: {path}: {why}") from error
            except AttributeError as error:
                words = "this version of paramiko cannot open such a channel"
                raise RefusedStreamError(self._host.name, f"{self._host.name}: {path}: {words}") from error

    def open_port(self, port: int) -> paramiko.Channel:
        """Open a stream to a TCP port of the host's loopback. It does not count as one of sshd's sessions.

        Raises PortClosedError; RefusedStreamError if sshd forbids it, ConnectionLostError if the link is
        lost.
        """
        name, here, there = self._host.name, ("127.0.0.1", 0), ("localhost", port)
        with self._opening, self.errors(), _deadline(self._transport):
            try:
                return self._transport.open_channel("direct-tcpip", there, here, timeout=CONNECT_S)
            except paramiko.ChannelException as error:
                if error.code == UNREACHED:
                    raise PortClosedError(name, f"{name}: no process listens on port {port}") from error
                why = {FORBIDDEN: "sshd forbids it (AllowTcpForwarding)"}.get(error.code, error.text)
                raise RefusedStreamError(name, f"{name}: port {port}: {why}") from error

    def open_program(self, words: Sequence[str]) -> paramiko.Channel:
        """Open a stream to the standard input and output of a program. It counts as one of sshd's sessions.

        Raises ConnectionLostError.
        """
        with self._opening, self.errors(), _deadline(self._transport):
            channel = self._transport.open_session(timeout=CONNECT_S)
            channel.exec_command(f"exec sh -c {shell_word(shlex.join(['exec', *words]))}")
        return channel

    def sever(self) -> None:
        """Cut the connection to the nearest hop."""
        self._is_closed.set()
        self._wires[0].close()

    def close(self) -> None:
        """Close the connection, on every hop."""
        self._is_closed.set()
        self._hang_up()

    def _open(self, hop: Hop, before: Hop | None, *, is_last: bool) -> paramiko.Transport:
        """Connect to a hop, check its host key, and log in."""
        host, who = self._host, _who(self._host, hop, is_last=is_last)
        with _errors(host, hop, who):
            wire = open_wire(hop, self._clients[-1].get_transport() if self._clients else None)
        self._wires.append(wire)
        trust = Trust(who, host.name, hop, before, wire.peer)
        login = KeyLogin(who, host.name, hop, _ssh_command(host, hop, is_last=is_last))
        connection = fabric.Connection(
            hop.address,
            user=hop.user,
            port=hop.port,
            forward_agent=False,
            connect_timeout=hop.connect_s,
            connect_kwargs={
                "sock": wire,
                "auth_strategy": login,
                "transport_factory": partial(OrderedTransport, trust.algorithms(), hop),
                "channel_timeout": CONNECT_S,
                "banner_timeout": hop.connect_s,
                "auth_timeout": AUTH_S,
            },
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),  # ssh_config.py has read it
        )
        self._clients.append(connection.client)
        connection.client.set_missing_host_key_policy(trust)  # the client itself knows no keys
        with _errors(host, hop, who):
            try:
                connection.open()
                transport: paramiko.Transport = connection.transport
                self._key = transport.get_remote_server_key()
            except paramiko.SSHException as error:
                # Between two steps, paramiko says "No existing session", and stores the cause.
                why = getattr(connection.client.get_transport(), "saved_exception", None)
                if why is None or isinstance(error, paramiko.AuthenticationException):
                    raise
                raise why from error
        self.needs_person |= login.needs_person
        return transport

    def _hang_up(self) -> None:
        """Close all connections, the nearest hop first.

        If the farthest hop came first, its closing message would wait for a stuck link.
        """
        for client in self._clients:
            client.close()
        for wire in self._wires:
            wire.close()

    def _keep_alive(self, transport: paramiko.Transport) -> None:
        """Make the server answer regularly, even if the agent is silent.

        A wire closes itself if it receives nothing for too long.
        """
        while not self._is_closed.wait(KEEPALIVE_S) and transport.is_active():
            with contextlib.suppress(
                paramiko.SSHException, EOFError, OSError
            ):  # the reader gets the error too
                transport.global_request("keepalive@openssh.com", wait=True)


class SshLink:
    """An agent's channel on a connection."""

    def __init__(self, connection: SshConnection, *, is_alone: bool) -> None:
        """Start the agent.

        With `is_alone`, the connection ends with the link. Raises the errors of `start_agent`.
        """
        self._connection = connection
        self._is_alone = is_alone
        self._said = b""
        """The login's output before the agent's first message."""
        self._is_heard = False
        self._timeout_s: float | None = None
        try:
            self._channel = connection.start_agent(is_first=is_alone)
        except BaseException:
            if is_alone:
                connection.close()
            raise
        self.about = connection.about
        self.by_hand = connection.by_hand
        self.open_socket = connection.open_socket
        self.open_port = connection.open_port
        self.open_program = connection.open_program
        self.sever = connection.sever

    def settimeout(self, timeout: float | None, /) -> None:
        """Limit the waits of recv and sendall, in seconds."""
        self._timeout_s = timeout
        self._channel.settimeout(timeout)

    def recv(self, size: int, /) -> bytes:
        """Return some bytes; b"" at the end of the stream.

        Raises ConnectionLostError with the login's output if no agent starts.
        """
        try:
            with self._connection.errors():
                piece = bytes(self._channel.recv(size))
        except TimeoutError as error:
            if self._is_heard:
                raise
            raise self._connection.no_agent(self._channel, self._said, self._timeout_s) from error
        if not self._is_heard:
            self._said = (self._said + piece)[-MAX_HEARD:]
            self._is_heard = MAGIC in self._said
            if not piece:
                raise self._connection.no_agent(self._channel, self._said, None)
        return piece

    def sendall(self, data: bytes, /) -> None:
        """Send all bytes."""
        with self._connection.errors():
            # A view: paramiko slices off the sent part, which would copy the rest for each packet.
            self._channel.sendall(cast("bytes", memoryview(data)))

    def shutdown(self, how: int, /) -> None:
        """Close the receiving direction (SHUT_RD), the sending one (SHUT_WR), or both (SHUT_RDWR)."""
        self._channel.shutdown(how)

    def close(self) -> None:
        """Close the link, or the whole connection, on every hop, if no other agent uses it."""
        if self._is_alone:
            self._connection.close()
            return
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError):  # it is lost
            self._channel.close()


def _who(host: Host, hop: Hop, *, is_last: bool) -> str:
    """Return a hop's name for messages."""
    return host.name if is_last else f"{host.name}, hop {hop.alias}"


def _ssh_command(host: Host, hop: Hop, *, is_last: bool) -> str:
    """Return the shell command that reaches a hop with ssh itself."""
    return host.by_hand("true") if is_last else f"ssh {shlex.quote(hop.alias)} true"


@contextlib.contextmanager
def _deadline(transport: paramiko.Transport) -> Iterator[None]:
    """Close the connection if the block takes longer than CONNECT_S.

    paramiko waits for some answers without a limit.
    """
    timer = threading.Timer(CONNECT_S, transport.close)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _errors(host: Host, hop: Hop, who: str) -> Iterator[None]:
    """Turn errors of Fabric, paramiko and the system into launcher's errors."""
    began = time.monotonic()
    mend = f"\n  try   {_ssh_command(host, hop, is_last=who == host.name)}"
    silent = f"{who}: {hop.where} does not answer within {hop.connect_s:g} s{mend}"
    try:
        yield
    except HostError:
        raise
    except SourceError as error:
        words = f"no connection can begin here at {error}\n  see ~/.ssh/config"
        raise UnreachableError(host.name, f"{who}: {words}") from error
    except SilentResolverError as error:
        words = f"no resolver answers within {hop.connect_s:g} s for '{hop.address}'; is the network up?"
        raise UnreachableError(host.name, f"{who}: {words}{mend}") from error
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            words = f"'{hop.address}' cannot be resolved at the moment ({error.strerror}); is the network up?"
            raise UnreachableError(host.name, f"{who}: {words}{mend}") from error
        words = f"no such address '{hop.address}' ({error.strerror})\n  see ~/.ssh/config or launch.toml"
        raise UnreachableError(host.name, f"{who}: {words}") from error
    except TurnedAwayError as error:
        words = f"{hop.where} hangs up without a greeting; has sshd too many logins at once (MaxStartups)?"
        raise UnreachableError(host.name, f"{who}: {words}{mend}") from error
    except ConnectionRefusedError as error:
        words = f"{hop.where} refuses the connection; is sshd running?"
        raise UnreachableError(host.name, f"{who}: {words}{mend}") from error
    except TimeoutError as error:
        raise UnreachableError(host.name, silent) from error
    except paramiko.ChannelException as error:
        why = {
            FORBIDDEN: "forbids it (AllowTcpForwarding)",
            UNREACHED: "gets no connection; is sshd running there?",
        }
        words = f"the hop before it {why.get(error.code, error.text)}"
        raise UnreachableError(host.name, f"{who}: {hop.where}: {words}{mend}") from error
    # ValueError: an invalid address; InvalidTag: a byte changed on the way
    except (paramiko.SSHException, OSError, EOFError, ValueError, InvalidTag) as error:
        if time.monotonic() - began >= hop.connect_s:
            raise UnreachableError(host.name, silent) from error
        words = str(error) or "the connection was closed"
        if isinstance(error, InvalidTag):
            words = "its data is damaged on the way"
        elif _NO_GREETING in words:
            words = "the server on that port does not speak SSH; is the port right?"
        raise UnreachableError(host.name, f"{who}: {hop.where}: {words}{mend}") from error


@contextlib.contextmanager
def _channel_errors(host: Host, transport: paramiko.Transport) -> Iterator[None]:
    """Add the reason why the connection broke. A channel knows only that it is closed."""
    try:
        yield
    except TimeoutError:
        raise
    except (paramiko.SSHException, OSError, EOFError) as error:
        why: BaseException = transport.saved_exception or error
        words = (why.strerror if isinstance(why, OSError) else None) or str(why) or "it was closed"
        raise ConnectionLostError(host.name, f"{host.name}: the connection broke: {words}") from error
