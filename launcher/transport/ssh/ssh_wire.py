"""The stream to a hop's sshd: over TCP, through the previous hop, or by a ProxyCommand.

Every wait has a limit.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import random
import socket
import subprocess
import tempfile
import time
from typing import Any

import paramiko

from launcher.transport.ssh.ssh_config import Hop, allowed
from launcher.transport.tcp import dial

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # launcher itself reports paramiko's errors

SILENCE_S = 30
LEAVE_S = 1
TURNED_AWAY = (
    b"Exceeded MaxStartups",
    b"Not allowed at this time",
)  # sshd sends these when it has too many logins; older versions send nothing
RETRY_S = 0.2, 1.2


class TurnedAwayError(ConnectionError):
    """Raised when a server hangs up without a greeting."""


class OrderedTransport(paramiko.Transport):
    """paramiko's transport with the algorithms of a hop's configuration."""

    _preferred_kex: tuple[str, ...]
    _preferred_macs: tuple[str, ...]

    def __init__(
        self,
        algorithms: tuple[str, ...],
        hop: Hop,
        sock: Any,
        *,
        disabled_algorithms: dict[str, list[str]] | None,
    ) -> None:
        """Use these host key algorithms, in order of preference, and the hop's other algorithms.

        Raises ValueError if the hop's configuration allows no algorithm of paramiko.
        """
        self._algorithms = algorithms
        self._ciphers = hop.ciphers
        self._preferred_kex = allowed("KexAlgorithms", hop.key_exchanges, self._preferred_kex)
        self._preferred_macs = allowed("MACs", hop.macs, self._preferred_macs)
        super().__init__(sock, disabled_algorithms=disabled_algorithms)

    def _send_user_message(self, data: paramiko.Message) -> None:
        """Send a channel's message. Raises OSError, like a socket.

        paramiko raises EOFError if the connection is lost during the call.
        """
        try:
            super()._send_user_message(data)  # type: ignore[misc]
        except (EOFError, paramiko.SSHException) as error:
            raise ConnectionResetError(errno.ECONNRESET, str(error) or "it was closed") from error

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """The algorithms. By default paramiko asks for certificates last."""
        return self._algorithms

    @property
    def preferred_ciphers(self) -> tuple[str, ...]:
        """The ciphers. By default paramiko puts the fastest, which need no separate MAC, last."""
        return self._ciphers


class Wire:
    """The stream below one SSH connection, with the parts of a socket's interface that paramiko needs.

    It closes itself if a piece is not accepted within SILENCE_S, and, once `watch` has been called, on
    silence.
    """

    def __init__(self, carrier: Any, proxy: _Proxy | None = None, peer: str | None = None) -> None:
        """Take over a socket or a channel, and the ProxyCommand at its other end, if any.

        `peer` is the IP address at its other end, if this machine itself has connected to it.
        """
        self.peer = peer
        self._carrier = carrier
        self._proxy = proxy
        self._early = b""
        self._stuck_since: float | None = None
        self._heard: float | None = None
        self._closed = False  # paramiko reads this attribute of its sockets

    def greet(self, timeout_s: float) -> None:
        """Wait for the server's first bytes, and keep them for `recv`.

        Raises TimeoutError, TurnedAwayError if the server hangs up, or OSError if its ProxyCommand has
        failed.
        """
        self._carrier.settimeout(max(0.001, timeout_s))
        with contextlib.suppress(ConnectionError):
            self._early = bytes(self._carrier.recv(256))
        if not self._early and self._proxy is not None:
            self._proxy.check()
        if not self._early or self._early.startswith(TURNED_AWAY):
            raise TurnedAwayError

    def watch(self) -> None:
        """Treat silence as the end from now on. The caller must make the server answer regularly."""
        self._heard = time.monotonic()

    def settimeout(self, timeout: float | None) -> None:
        """Limit the waits of recv and send, in seconds."""
        self._carrier.settimeout(timeout)

    def recv(self, size: int) -> bytes:
        """Return some bytes; b"" at the end of the stream."""
        if self._early:
            piece, self._early = self._early[:size], self._early[size:]
            return piece
        try:
            piece = bytes(self._carrier.recv(size))
        except TimeoutError:
            if self._heard is not None and time.monotonic() - self._heard > SILENCE_S:
                raise _ended(f"nothing was received for {SILENCE_S} s") from None
            raise
        if self._heard is not None:
            self._heard = time.monotonic()
        return piece

    def send(self, data: bytes) -> int:
        """Send some bytes and return their number."""
        try:
            size = int(self._carrier.send(data))
        except TimeoutError:
            now = time.monotonic()
            self._stuck_since = self._stuck_since or now
            if now - self._stuck_since > SILENCE_S:
                raise _ended(f"nothing was accepted for {SILENCE_S} s") from None
            raise
        self._stuck_since = None
        return size

    def close(self) -> None:
        """Close the stream and its carrier."""
        self._closed = True
        self._carrier.close()
        if self._proxy is not None:
            self._proxy.end()


def _ended(why: str) -> ConnectionAbortedError:
    """Return an error with an errno. paramiko's thread prints a traceback for one without."""
    return ConnectionAbortedError(errno.ECONNABORTED, why)


def open_wire(hop: Hop, before: paramiko.Transport | None) -> Wire:
    """Open the stream to a hop, through the previous hop if there is one. Wait for its server's greeting.

    A busy sshd refuses connections at random, so retry until the hop's ConnectTimeout. Raises TimeoutError,
    TurnedAwayError, SilentResolverError, OSError or paramiko.SSHException.
    """
    deadline = time.monotonic() + hop.connect_s
    while True:
        wire = _dial(hop, before, deadline)
        try:
            wire.greet(deadline - time.monotonic())
        except TurnedAwayError:
            wire.close()
            wait_s = random.uniform(*RETRY_S)  # noqa: S311 - jitter
            if time.monotonic() + wait_s > deadline:
                raise
            time.sleep(wait_s)
        except BaseException:
            wire.close()
            raise
        else:
            return wire


def _dial(hop: Hop, before: paramiko.Transport | None, deadline: float) -> Wire:
    if hop.proxy_command:
        proxy = _Proxy(hop.proxy_command)
        return Wire(proxy.ours, proxy)
    if before is not None:
        left_s = max(0.1, deadline - time.monotonic())
        return Wire(before.open_channel("direct-tcpip", (hop.address, hop.port), ("", 0), timeout=left_s))
    carrier = dial(hop.address, hop.port, deadline, hop.source)
    return Wire(carrier.stream, peer=carrier.peer)


class _Proxy:
    """A ProxyCommand on one end of a socket pair, so that its stream has time limits like any other."""

    def __init__(self, command: str) -> None:
        """Start the command."""
        self.ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
            )

    def check(self) -> None:
        """Raise OSError with the last line of its errors if it has failed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if code := self._process.wait(LEAVE_S):
                self._errors.seek(0)
                words = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise OSError(f"its ProxyCommand ended with exit code {code}: {words}")

    def end(self) -> None:
        """Kill the program and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._errors.close()
