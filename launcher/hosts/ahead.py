"""A connection to a host that begins before the command line is loaded: its name is looked up, TCP connects, and keys are exchanged meanwhile.

What connects to hosts is loaded while TCP connects. Of us the host learns nothing but how we encrypt: its key is checked, and we log
in, only once the command connects to it. That takes the connection over, if it leads where it is to lead, and does all else as without
it. One that is not taken within CONNECT_S is closed, because a server does not wait for ever for a login; the command then connects again.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import LaunchError
from launcher.hosts.lean_invoke import load_invoke
from launcher.hosts.ssh_config import Hop, Login, hops
from launcher.hosts.tcp import CONNECT_S, dial

if TYPE_CHECKING:
    from launcher.hosts.ssh_wire import Wire


class Destination(NamedTuple):
    """What decides how a host is reached, as far as ssh's configuration is concerned."""

    address: str
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    known_hosts: str | None = None


class _Beginning:
    """The route to a host while it is looked up, and the connection to its only hop while it begins, if there is to be one."""

    def __init__(self, destination: Destination, *, connects: bool) -> None:
        self.destination = destination
        self._connects = connects
        self._route: list[Hop] | None = None
        self.error: LaunchError | None = None
        """Why the route cannot be looked up."""
        self._is_looked_up = threading.Event()
        self._is_loaded = threading.Event()
        self._is_ready = threading.Event()
        self._is_settled = threading.Event()
        """It was taken or dropped: what stands only now is closed."""
        self._deadline = time.monotonic() + CONNECT_S
        self._lock = threading.Lock()
        self._stream: socket.socket | None = None
        self._wire: Wire | None = None
        self._thread = threading.Thread(target=self._connect, name="connect ahead", daemon=True)
        self._thread.start()

    def _connect(self) -> None:
        try:
            # Whoever connects tries again, and reports it.
            with contextlib.suppress(LaunchError, OSError, ValueError, LookupError):
                self._look_up()
                if self._connects and self._route is not None and self.is_direct:
                    self._dial(self._route[0])
        finally:
            self._is_ready.set()
        if not self._is_settled.wait(self._left_s()):
            self.drop()

    def _look_up(self) -> None:
        try:
            self._route = hops(self.destination)
        except LaunchError as error:
            self.error = error
        finally:
            self._is_looked_up.set()

    def _dial(self, hop: Hop) -> None:
        carrier = dial(hop.address, hop.port, self._deadline)
        with self._lock:
            self._stream = carrier.stream
            if self._is_settled.is_set():
                carrier.stream.close()
                return
        self._is_loaded.wait()
        from launcher.hosts.ssh_wire import begin  # `load` has loaded it

        wire = begin(hop, carrier)
        with self._lock:
            if not self._is_settled.is_set():
                self._wire = wire
                return
        wire.close()

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def load(self) -> None:
        """Load what connects over SSH."""
        try:
            load_invoke()
            importlib.import_module("launcher.hosts.ssh_wire")  # a command that reaches no host does without
        finally:
            self._is_loaded.set()

    @property
    def route(self) -> list[Hop] | None:
        """The route, once it is looked up; None if it is not clear."""
        self._is_looked_up.wait()
        return self._route

    @property
    def is_direct(self) -> bool:
        """Whether the host is reached without another one, and without a program."""
        route = self.route
        return route is not None and len(route) == 1 and not route[0].proxy_command

    def take(self) -> Wire | None:
        """Return the connection once it stands; None if it cannot be made, has ended, or is as old as it may be."""
        self._is_ready.wait(self._left_s())
        with self._lock:
            self._is_settled.set()
            wire, self._wire = self._wire, None
        if wire is not None and (wire.has_ended or not self._left_s()):
            wire.close()
            return None
        return wire

    def drop(self) -> None:
        """Close the connection, whenever it stands."""
        with self._lock:
            self._is_settled.set()
            if self._stream is not None:
                with contextlib.suppress(OSError):  # it has ended
                    self._stream.shutdown(socket.SHUT_RDWR)
            wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()


_begun: _Beginning | None = None


def begin(destination: Destination, *, connects: bool = True) -> None:
    """Begin to look up the way to a host. If it `connects` and the host is reached directly, connect, and load meanwhile what does.

    Whoever connects later reports a failure.
    """
    global _begun  # noqa: PLW0603 - a command line names one host
    drop()
    _begun = _Beginning(destination, connects=connects)
    if connects:
        _begun.load()


def route_to(host: Login) -> list[Hop] | None:
    """Return the route to a host, if it was looked up to begin a connection. Raises LaunchError if that has failed."""
    if _begun is None or _begun.destination != tuple(getattr(host, key) for key in Destination._fields):
        return None
    route, error = _begun.route, _begun.error
    if error is not None:
        drop()  # the next try looks it up anew
        raise error
    return route


def take(hop: Hop) -> Wire | None:
    """Return the connection to a hop that has begun, once it stands; None if there is none. It is the caller's to close."""
    global _begun
    if _begun is None or _begun.route != [hop]:
        return None
    begun, _begun = _begun, None
    return begun.take()


def drop() -> None:
    """Close the connection that has begun, if nobody has taken it."""
    global _begun  # noqa: PLW0603
    if _begun is not None:
        _begun.drop()
        _begun = None
