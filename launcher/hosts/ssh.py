"""A host over SSH, on Fabric: one connection, one channel for the agent. Host keys are checked, always."""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import fabric
import paramiko

from launcher.errors import (
    ConnectionLostError,
    HostError,
    RefusedStreamError,
    UnreachableError,
)
from launcher.hosts.agent_file import shell_command, shell_word
from launcher.hosts.ssh_config import Hop, hops
from launcher.hosts.ssh_keys import AUTH_S, Login
from launcher.hosts.ssh_streamlocal import open_streamlocal
from launcher.hosts.ssh_trust import Trust
from launcher.hosts.ssh_wire import CONNECT_S, SilentResolverError, TurnedAwayError, Wire, open_wire
from launcher.values.host import Host

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its threads' last words are ours to tell

KEEPALIVE_S = 10
WINDOW_BYTES = 16 * 1024 * 1024
FORBIDDEN, NO_WAY = 1, 2  # why a server opens no channel: RFC 4254, 5.1


class SshLink:
    """The agent's channel on a connection of its own. `about` says as whom and by which key."""

    def __init__(self, host: Host) -> None:
        """Connect, check every hop's key, and start the agent.

        Raises BadFileError, UnreachableError, AuthRefusedError or HostKeyError.
        """
        self._host = host
        self._wires: list[Wire] = []
        self._clients: list[paramiko.SSHClient] = []
        self._is_closed = threading.Event()
        way = hops(host)
        try:
            for number, hop in enumerate(way):
                transport = self._open(hop, way[number - 1] if number else None, is_last=hop is way[-1])
            with _errors(host, hop, _who(host, hop, is_last=True)), _deadline(transport):
                channel = transport.open_session(window_size=WINDOW_BYTES, timeout=CONNECT_S)
                channel.exec_command(shell_command(host.python, host.root))
        except BaseException:
            self._hang_up()
            raise
        self._channel = channel
        self._transport = transport
        self._hop = hop
        key = transport.get_remote_server_key()
        self.about = f"{hop.user}@{hop.address}, key {key.fingerprint}"
        if len(way) > 1:
            self.about += f", through {', '.join(one.alias for one in way[:-1])}"
        threading.Thread(
            target=self._keep_alive, args=(transport,), name=f"alive {host.name}", daemon=True
        ).start()
        for wire in self._wires:
            wire.watch()

    def settimeout(self, timeout: float | None, /) -> None:
        """Bound the waits of recv and sendall, in seconds."""
        self._channel.settimeout(timeout)

    def recv(self, size: int, /) -> bytes:
        """Return some bytes; none at the end of the stream."""
        with _channel_errors(self._host, self._transport):
            return bytes(self._channel.recv(size))

    def sendall(self, data: bytes, /) -> None:
        """Send all bytes."""
        with _channel_errors(self._host, self._transport):
            self._channel.sendall(data)

    def by_hand(self, command: str) -> str:
        """Return the line by which ssh itself runs a command there."""
        return f"{_by_hand(self._host, self._hop, is_last=True).removesuffix('true')}{command}"

    def open_socket(self, path: str) -> paramiko.Channel:
        """Open a stream to a Unix socket over there, beside sshd's sessions.

        Raises RefusedStreamError where sshd forbids it or nobody listens, ConnectionLostError when the link is gone.
        """
        with _channel_errors(self._host, self._transport), _deadline(self._transport):
            try:
                return open_streamlocal(self._transport, path, CONNECT_S)
            except paramiko.ChannelException as error:
                forbidden = "sshd forbids it (AllowStreamLocalForwarding no)"
                why = {FORBIDDEN: forbidden, NO_WAY: f"nobody listens there, or {forbidden}"}.get(
                    error.code, error.text
                )
                raise RefusedStreamError(self._host.name, f"{self._host.name}: {path}: {why}") from error
            except AttributeError as error:
                words = "this paramiko opens no such channel"
                raise RefusedStreamError(self._host.name, f"{self._host.name}: {path}: {words}") from error

    def open_program(self, words: Sequence[str]) -> paramiko.Channel:
        """Open a stream to the standard input and output of a program; it takes one of sshd's sessions.

        Raises ConnectionLostError.
        """
        with _channel_errors(self._host, self._transport), _deadline(self._transport):
            channel = self._transport.open_session(timeout=CONNECT_S)
            channel.exec_command(f"exec sh -c {shell_word(shlex.join(['exec', *words]))}")
        return channel

    def close(self) -> None:
        """Close the connection, on every hop."""
        self._is_closed.set()
        self._hang_up()

    def _open(self, hop: Hop, before: Hop | None, *, is_last: bool) -> paramiko.Transport:
        """Connect to a hop, believe it or not, and log in."""
        host, who = self._host, _who(self._host, hop, is_last=is_last)
        with _errors(host, hop, who):
            wire = open_wire(hop, self._clients[-1].get_transport() if self._clients else None)
        self._wires.append(wire)
        connection = fabric.Connection(
            hop.address,
            user=hop.user,
            port=hop.port,
            forward_agent=False,
            connect_timeout=CONNECT_S,
            connect_kwargs={
                "sock": wire,
                "auth_strategy": Login(who, host.name, hop, _by_hand(host, hop, is_last=is_last)),
                "channel_timeout": CONNECT_S,
                "banner_timeout": CONNECT_S,
                "auth_timeout": AUTH_S,
            },
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),  # ssh has read it already
        )
        self._clients.append(connection.client)
        trust = Trust(who, host.name, hop, before, connection.client)
        with _errors(host, hop, who, trust):
            connection.open()
        transport: paramiko.Transport = connection.transport
        return transport

    def _hang_up(self) -> None:
        """Close everything, and the nearest first: what goes through it has nobody to say goodbye to then.

        A goodbye on a link that takes nothing would wait.
        """
        for client in self._clients:
            client.close()
        for wire in self._wires:
            wire.close()

    def _keep_alive(self, transport: paramiko.Transport) -> None:
        """Give the server cause to speak, whatever the agent does: a wire that hears nothing ends by itself."""
        while not self._is_closed.wait(KEEPALIVE_S) and transport.is_active():
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):  # whoever reads is told
                transport.global_request("keepalive@openssh.com", wait=True)


def _who(host: Host, hop: Hop, *, is_last: bool) -> str:
    """Return what a hop is called in a message."""
    return host.name if is_last else f"{host.name}, hop {hop.alias}"


def _by_hand(host: Host, hop: Hop, *, is_last: bool) -> str:
    """Return the line by which ssh itself goes to a hop."""
    if not is_last:
        return f"ssh {shlex.quote(hop.alias)} true"
    key = f"-i {shlex.quote(host.identity_file)} " if host.identity_file else ""
    port = f"-p {host.port} " if host.port else ""
    place = f"{host.user}@{hop.alias}" if host.user else hop.alias
    return f"ssh {key}{port}{shlex.quote(place)} true"


@contextlib.contextmanager
def _deadline(transport: paramiko.Transport) -> Iterator[None]:
    """End the connection when what is done takes longer than CONNECT_S: paramiko waits for some answers for ever."""
    timer = threading.Timer(CONNECT_S, transport.close)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _errors(host: Host, hop: Hop, who: str, trust: Trust | None = None) -> Iterator[None]:
    """The one place where Fabric's, paramiko's and the system's words become ours."""
    began = time.monotonic()
    mend = f"\n  try   {_by_hand(host, hop, is_last=who == host.name)}"
    silent = f"{who}: {hop.where} does not answer within {CONNECT_S} s{mend}"
    try:
        yield
    except HostError:
        raise
    except paramiko.BadHostKeyException as error:
        if trust is None:
            raise
        raise trust.refusal(error.key, error.expected_key) from error
    except SilentResolverError as error:
        words = f"no resolver says within {CONNECT_S} s what address '{hop.address}' is; is the network up?"
        raise UnreachableError(host.name, f"{who}: {words}{mend}") from error
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            words = f"the address of '{hop.address}' cannot be asked for now ({error.strerror}); is the network up?"
            raise UnreachableError(host.name, f"{who}: {words}{mend}") from error
        words = f"no such address '{hop.address}' ({error.strerror})\n  see ~/.ssh/config or launch.toml"
        raise UnreachableError(host.name, f"{who}: {words}") from error
    except TurnedAwayError as error:
        words = f"{hop.where} hangs up before it says a word; has sshd too many at once (MaxStartups)?"
        raise UnreachableError(host.name, f"{who}: {words}{mend}") from error
    except ConnectionError as error:
        words = f"{hop.where} refuses the connection; is sshd up?"
        raise UnreachableError(host.name, f"{who}: {words}{mend}") from error
    except TimeoutError as error:
        raise UnreachableError(host.name, silent) from error
    except paramiko.ChannelException as error:
        why = {FORBIDDEN: "forbids it (AllowTcpForwarding)", NO_WAY: "gets no connection; is sshd up there?"}
        words = f"the hop before it {why.get(error.code, error.text)}"
        raise UnreachableError(host.name, f"{who}: {hop.where}: {words}{mend}") from error
    except (paramiko.SSHException, OSError, EOFError, ValueError) as error:  # ValueError: no text, no address
        if time.monotonic() - began >= CONNECT_S:
            raise UnreachableError(host.name, silent) from error
        raise UnreachableError(
            host.name, f"{who}: {hop.where}: {error or 'the connection ended'}{mend}"
        ) from error


@contextlib.contextmanager
def _channel_errors(host: Host, transport: paramiko.Transport) -> Iterator[None]:
    """Say why the connection broke: a channel knows only that it is closed."""
    try:
        yield
    except TimeoutError:
        raise
    except (paramiko.SSHException, OSError, EOFError) as error:
        why: BaseException = transport.saved_exception or error
        words = (why.strerror if isinstance(why, OSError) else None) or str(why) or "it ended"
        raise ConnectionLostError(host.name, f"{host.name}: the connection broke: {words}") from error
