"""Port forwarding: carry connections from a port of this machine to one beside a run.

"Beside" means on the run's host, in its container or on its node.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from launcher.backends.runtimes import Runtime, open_for_run
from launcher.copy.local_copy import LocalCopy
from launcher.errors import HostError, LaunchError, PortClosedError, RefusedStreamError, UsageError
from launcher.runs.follow.summaries import known_summary
from launcher.runs.run_client import open_client
from launcher.transport.channel import Socket
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host

LOOPBACK = "127.0.0.1"
PIECE = 1 << 16
LOOK_S = 0.5
BACKLOG = 64


class PortForward:
    """A port beside a run, reached over one connection, which is reopened on the next use if it is lost."""

    def __init__(self, host: Host, local_copy: LocalCopy, port: int) -> None:
        """Connect to the host. Raises HostError, and NoRunError for a run that was removed."""
        self._host = host
        self._local_copy = local_copy
        self.port = port
        self._lock = threading.Lock()
        self._opened = contextlib.ExitStack()
        self._runtime: Runtime | None = None
        with self._lock:
            self._connect()

    @property
    def client(self) -> HostClient:
        """The client of the run's host."""
        return self._connected().client

    @property
    def is_here(self) -> bool:
        """Whether the port is on this machine's loopback, so that no forwarding is needed."""
        return self._host.is_local and not self._connected().has_own_loopback

    def open(self) -> Socket:
        """Open a stream to the port.

        Raises PortClosedError, another RefusedStreamError, HostError, or NoRunError for a run that was removed.
        """
        with self._lock:
            try:
                return self._connected().open_port(self._local_copy.run, self.port)
            except RefusedStreamError:
                raise
            except HostError:
                self._close()
            return self._connected().open_port(self._local_copy.run, self.port)

    def is_answered(self) -> bool:
        """Return whether a program listens on the port.

        Raises RefusedStreamError if the host forbids it, or HostError.
        """
        try:
            self.open().close()
        except PortClosedError:
            return False
        return True

    def close(self) -> None:
        """Close the connection and all streams over it."""
        with self._lock:
            self._close()

    def _connected(self) -> Runtime:
        return self._runtime or self._connect()

    def _connect(self) -> Runtime:
        with contextlib.ExitStack() as opening:
            client = opening.enter_context(open_client(self._host, self._local_copy))
            summary = known_summary(client, self._local_copy.run)
            self._runtime = opening.enter_context(open_for_run(client, summary))
            self._opened = opening.pop_all()
        return self._runtime

    def _close(self) -> None:
        self._runtime = None
        self._opened.close()


class Forwarded(NamedTuple):
    """The port of this machine that leads to a run's port, and whether a program listens on the run's port yet.

    `is_carried` is false if both are the same port of this machine.
    """

    port: int
    is_answered: bool
    is_carried: bool = True


@contextlib.contextmanager
def forwarded(forward: PortForward, port: int | None, tell: Callable[[str], None]) -> Iterator[Forwarded]:
    """Carry connections to `port` of this machine's loopback through `forward`, during the block.

    Without a `port`, the number of the run's port is used, or another if that is taken. `tell` gets each
    error, but not the same one twice in a row. Raises UsageError if `port` is taken, RefusedStreamError if
    the host forbids it, HostError.
    """
    is_answered = forward.is_answered()
    with contextlib.ExitStack() as opened:
        listener = None
        if not forward.is_here or port not in (None, forward.port):
            listener = opened.enter_context(_listen(port or forward.port, or_another=port is None))
            if not is_answered and forward.is_answered() and _has_caller(listener):
                listener = None  # the host shares this machine's loopback, so the check reached this listener
                opened.close()
        if listener is None:
            yield Forwarded(forward.port, is_answered, is_carried=False)
            return
        carrier = _Carrier(listener, forward, tell)
        server = threading.Thread(target=carrier.serve, daemon=True)
        server.start()
        try:
            yield Forwarded(listener.getsockname()[1], is_answered)
        finally:
            carrier.is_over.set()
            server.join()


def _has_caller(listener: socket.socket) -> bool:
    return bool(select.select([listener], [], [], LOOK_S)[0])


def _listen(port: int, *, or_another: bool) -> socket.socket:
    for tried in (port, 0) if or_another else (port,):
        with contextlib.suppress(OSError):
            return socket.create_server((LOOPBACK, tried), backlog=BACKLOG)
    raise UsageError(
        f"port {port} of this machine is taken, or you may not open it\n  another   launch forward RUN PORT"
    )


class _Carrier:
    """Carries connections to `listener` through `forward`."""

    def __init__(self, listener: socket.socket, forward: PortForward, tell: Callable[[str], None]) -> None:
        self._listener = listener
        self._forward = forward
        self._tell = tell
        self._told = ""
        self.is_over = threading.Event()

    def serve(self) -> None:
        """Carry connections until `is_over` is set."""
        self._listener.settimeout(LOOK_S)
        while not self.is_over.is_set():
            with contextlib.suppress(OSError):  # no connection came, or it is already closed
                here, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(here,), daemon=True).start()

    def _carry(self, here: socket.socket) -> None:
        with here:
            try:
                there = self._forward.open()
            except LaunchError as error:  # the run may have been removed since
                self._say_once(str(error).splitlines()[0])
                return
            self._told = ""
            try:
                there.settimeout(None)
                back = threading.Thread(target=_pump, args=(there, here), daemon=True)
                back.start()
                _pump(here, there)
                back.join()
            finally:
                there.close()

    def _say_once(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            self._tell(problem)


def _pump(source: Socket, sink: Socket) -> None:
    """Copy one direction of a connection to its end, and then close the sink's input.

    An error on one side ends both directions.
    """
    try:
        while piece := source.recv(PIECE):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except (OSError, EOFError, HostError):
        for side in (source, sink):
            with contextlib.suppress(OSError, EOFError, HostError):
                side.shutdown(socket.SHUT_RDWR)
