"""The stream to a hop's sshd: over TCP, through the hop before it, or by a ProxyCommand; no wait on it lasts for ever."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import Future
from typing import Any

import paramiko

from launcher.hosts.ssh_config import Hop

CONNECT_S = 10
SILENCE_S = 30
LEAVE_S = 1
TURNED_AWAY = (
    b"Exceeded MaxStartups",
    b"Not allowed at this time",
)  # sshd's words at the door; older ones say nothing
RETRY_S = 0.2, 1.2


class TurnedAwayError(ConnectionError):
    """Raised when a server hangs up before it has said a word."""


class SilentResolverError(OSError):
    """Raised when nobody says in time what address a name has."""


class Wire:
    """What carries one SSH connection, with a socket's manners as paramiko needs them.

    A piece that is not taken within SILENCE_S ends it; so does silence, once `watch` has been called.
    """

    def __init__(self, carrier: Any, proxy: _Proxy | None = None) -> None:
        """Take over a socket or a channel, and the ProxyCommand behind it, if there is one."""
        self._carrier = carrier
        self._proxy = proxy
        self._early = b""
        self._stuck_since: float | None = None
        self._heard: float | None = None
        self._closed = False  # paramiko reads this of its sockets

    def greet(self, timeout_s: float) -> None:
        """Wait for the server's first bytes, which stay to be read.

        Raises TimeoutError, TurnedAwayError when it hangs up, or OSError where its ProxyCommand has failed.
        """
        self._carrier.settimeout(max(0.001, timeout_s))
        with contextlib.suppress(ConnectionError):
            self._early = bytes(self._carrier.recv(256))
        if not self._early and self._proxy is not None:
            self._proxy.check()
        if not self._early or self._early.startswith(TURNED_AWAY):
            raise TurnedAwayError

    def watch(self) -> None:
        """From now on, take silence for the end: whoever calls this sees to it that the server has cause to speak."""
        self._heard = time.monotonic()

    def settimeout(self, timeout: float | None) -> None:
        """Bound the waits of recv and send, in seconds."""
        self._carrier.settimeout(timeout)

    def recv(self, size: int) -> bytes:
        """Return some bytes; none at the end of the stream."""
        if self._early:
            piece, self._early = self._early[:size], self._early[size:]
            return piece
        try:
            piece = bytes(self._carrier.recv(size))
        except TimeoutError:
            if self._heard is not None and time.monotonic() - self._heard > SILENCE_S:
                raise _ended(f"nothing was heard for {SILENCE_S} s") from None
            raise
        if self._heard is not None:
            self._heard = time.monotonic()
        return piece

    def send(self, data: bytes) -> int:
        """Send some bytes; return how many."""
        try:
            size = int(self._carrier.send(data))
        except TimeoutError:
            now = time.monotonic()
            self._stuck_since = self._stuck_since or now
            if now - self._stuck_since > SILENCE_S:
                raise _ended(f"nothing was taken for {SILENCE_S} s") from None
            raise
        self._stuck_since = None
        return size

    def close(self) -> None:
        """Close the stream and what carries it."""
        self._closed = True
        self._carrier.close()
        if self._proxy is not None:
            self._proxy.end()


def _ended(why: str) -> ConnectionAbortedError:
    """Return an error that has a number too: without one paramiko's thread fails over it, with a traceback."""
    return ConnectionAbortedError(errno.ECONNABORTED, why)


def open_wire(hop: Hop, before: paramiko.Transport | None) -> Wire:
    """Open the stream to a hop, through the one before it if there is one, and wait until its server speaks.

    A busy sshd turns people away at random, so that is tried again, for CONNECT_S in all.
    Raises TimeoutError, TurnedAwayError, SilentResolverError, OSError or paramiko.SSHException.
    """
    deadline = time.monotonic() + CONNECT_S
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
    found = _resolve(hop, deadline)
    problem: OSError | None = None
    for number, (family, kind, protocol, _, address) in enumerate(found):
        carrier = socket.socket(family, kind, protocol)
        try:
            carrier.settimeout(max(0.1, (deadline - time.monotonic()) / (len(found) - number)))
            carrier.connect(address)
            carrier.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            carrier.close()
            problem = error
        except BaseException:
            carrier.close()
            raise
        else:
            return Wire(carrier)
    raise problem or OSError(f"no address of {hop.address} is for TCP")


def _resolve(hop: Hop, deadline: float) -> list[Any]:
    """Return what `getaddrinfo` says of a hop, in a thread that is left behind at the deadline.

    The C library's own limit is five seconds for each server, try and search domain, and hears nobody meanwhile.
    """
    answer: Future[list[Any]] = Future()

    def ask() -> None:
        try:
            answer.set_result(socket.getaddrinfo(hop.address, hop.port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name=f"resolve {hop.address}", daemon=True).start()
    try:
        return answer.result(max(0.1, deadline - time.monotonic()))
    except TimeoutError:
        raise SilentResolverError from None


class _Proxy:
    """A ProxyCommand on one end of a socket pair, so that its stream has deadlines as any other has."""

    def __init__(self, command: str) -> None:
        """Start it."""
        self.ours, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._said,
            )

    def check(self) -> None:
        """Raise OSError, with its last words, where it has failed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if code := self._process.wait(LEAVE_S):
                self._said.seek(0)
                words = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise OSError(f"its ProxyCommand ended with {code}: {words}")

    def end(self) -> None:
        """Make it leave."""
        self._process.kill()
        self._process.wait()
        self._said.close()
