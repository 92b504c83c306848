"""A shared connection to a host, on which many host clients may be open at once.

    with open_shared_connection(host) as line:
        with line.client() as client:
            client.runs.summaries()

The connection is made for the first client. The requests of all clients use few channels, each with its own
agent:

- `runs.read` that waits for news: one channel for all clients; one thread asks about all runs at once;
- a client that prepares a run, holds a lock, or resumes a run: a reserved channel, until that channel's agent
  holds nothing for the client;
- every other request: one of the shared channels, for one call.

A shared connection is thread-safe, and so are `sever` and `close` of a host client. Otherwise a client is for
one thread at a time. When the connection breaks, every call of all its clients raises ConnectionLostError,
and the next call of `client` connects again, once for all threads.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import IO, Any, Protocol, Self

from launcher.errors import AgentError, ConnectionLostError, HostError
from launcher.transport.agent_input import MessageSource
from launcher.transport.channel import (
    DEADLINE_S,
    HASHING_S,
    AgentChannel,
    AgentReply,
    ForwardingOpener,
    Incoming,
    Link,
    Opener,
    Socket,
)
from launcher.transport.channel_pool import ChannelPool
from launcher.transport.client.host_client import HostClient
from launcher.transport.client.run_reading import BatchedReader, Reader, SingleReader
from launcher.values.host import Host

HOLDING = ("create", "hold", "resume")
"""Verbs after which an agent may hold an object that ends with its channel."""
RELEASING = ("start", "await", "hold", "resume", "seal_environment")
"""Verbs after which the agent may no longer hold such an object."""
JUST_NOW_S = 0.5
"""For this many seconds a failed attempt to connect counts for other threads too.

Many threads often lose the link together.
"""


class Connection(Opener, Protocol):
    """A connection to a host, with an agent behind each link. `close` closes the links too. Thread-safe."""

    @property
    def is_open(self) -> bool:
        """Whether it is neither closed nor lost."""

    def open_link(self) -> Link:
        """Start another agent, with a link that ends separately.

        Raises RefusedStreamError if the host allows no more.
        """


class SharedConnection:
    """One connection to a host, for many host clients; see the module's docstring."""

    def __init__(
        self,
        host: Host,
        connect: Callable[[], Connection],
        make_client: Callable[[SharedCalls, Reader], HostClient],
    ) -> None:
        """Make no connection yet. `make_client` creates a host client from its calls and its reader."""
        self.host = host.name
        self._way = host.way
        self._connect = connect
        self._make_client = make_client
        self._lock = threading.Lock()
        self._attempt: Future[_LiveConnection] | None = None
        self._failed_at = 0.0
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def client(self) -> HostClient:
        """Return a new host client. Connect if necessary. Close it, or use it as a context manager.

        Raises HostError with the action to take.
        """
        circuit = self._connected()
        calls = SharedCalls(circuit)
        return self._make_client(calls, _ClientReader(calls, circuit.reader))

    def leads_to(self, host: Host) -> bool:
        """Whether this connection leads to a host.

        A host of the same name may have another address or route.
        """
        return host.way == self._way

    def close(self) -> None:
        """Close the connection and all its host clients. Runs continue."""
        with self._lock:
            self._is_closed = True
            attempt = self._attempt
        if attempt is not None and attempt.done() and attempt.exception() is None:
            attempt.result().close()

    def _connected(self) -> _LiveConnection:
        """Return the open connection. One thread makes it; the others wait for the result."""
        with self._lock:
            attempt, before = self._attempt, None
            if self._is_closed:
                raise self._closed_error()
            is_ours = attempt is None or (attempt.done() and self._is_over(attempt))
            if is_ours:
                before, self._attempt = attempt, Future()
            attempt = self._attempt
        assert attempt is not None  # noqa: S101 - it was just made, if it was None
        if is_ours:
            self._make(attempt, before)
        return attempt.result()

    def _is_over(self, attempt: Future[_LiveConnection]) -> bool:
        """Whether a finished attempt is obsolete: its connection is lost, or it failed a while ago."""
        if attempt.exception() is not None:
            return time.monotonic() - self._failed_at > JUST_NOW_S
        return not attempt.result().connection.is_open

    def _make(self, attempt: Future[_LiveConnection], before: Future[_LiveConnection] | None) -> None:
        """Connect, and finish the attempt. Close the previous connection."""
        try:
            if before is not None and before.exception() is None:
                before.result().close()
            circuit = _LiveConnection(self.host, self._connect())
        except BaseException as error:
            self._failed_at = time.monotonic()
            # Ctrl-C interrupts only this thread: the others connect themselves.
            is_known = isinstance(error, Exception)
            attempt.set_exception(
                error if is_known else ConnectionLostError(self.host, f"{self.host}: interrupted")
            )
            if not is_known:
                raise
            return
        attempt.set_result(circuit)
        with self._lock:
            is_late = self._is_closed
        if is_late:
            circuit.close()

    def _closed_error(self) -> ConnectionLostError:
        return ConnectionLostError(self.host, f"{self.host}: the shared connection was closed")


class _LiveConnection:
    """One connection, its channels, and its root. A host whose root was replaced counts as another host."""

    def __init__(self, host: str, connection: Connection) -> None:
        """Take over a new connection, and start the agent that reads runs. Raises HostError."""
        self.host = host
        self.connection = connection
        self.root_id: str | None = None
        try:
            first = self._open_channel()
        except BaseException:
            connection.close()
            raise
        self.root_id = first.root_id
        self.reader = BatchedReader(host, first, self._open_channel)
        self.pool = ChannelPool(host, self._open_channel)

    def close(self) -> None:
        """Close the connection first, so that closing the rest does not wait for a stuck link."""
        self.connection.close()
        self.reader.close()
        self.pool.close()

    def _open_channel(self) -> AgentChannel:
        channel = AgentChannel(self.host, self.connection.open_link())
        if self.root_id not in (None, channel.root_id):
            channel.close()
            self.connection.sever()
            raise ConnectionLostError(
                self.host, f"{self.host}: its folder for runs was replaced during the connection"
            )
        return channel


class SharedCalls(ForwardingOpener):
    """The calls of one host client on a shared connection: over its reserved channel, or a shared one."""

    def __init__(self, circuit: _LiveConnection) -> None:
        """Reserve no channel yet."""
        super().__init__(circuit.connection)
        self._circuit = circuit
        self._kept: AgentChannel | None = None
        self._streams: list[Socket] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def host(self) -> str:
        """The host's name."""
        return self._circuit.host

    @property
    def root_id(self) -> str:
        """The random id of the host's root. Empty if the host has none."""
        return self._circuit.root_id or ""

    def call(
        self, verb: str, payload: bytes = b"", *, deadline_s: float = DEADLINE_S, **args: Any
    ) -> AgentReply:
        """Send a request and return the answer."""
        with self._channel_for(verb) as channel:
            return channel.call(verb, payload, deadline_s=deadline_s, **args)

    def send_stream(
        self, verb: str, payload: bytes, fill: Callable[[IO[bytes]], None], **args: Any
    ) -> AgentReply:
        """Send a request that is followed by a stream. `fill` writes the stream."""
        with self._channel_for(verb) as channel:
            return channel.send_stream(verb, payload, fill, **args)

    def receive_stream(
        self,
        verb: str,
        take: Callable[[Incoming], None],
        payload: bytes = b"",
        *,
        wait_s: float = HASHING_S,
        total_s: float | None = None,
        **args: Any,
    ) -> AgentReply:
        """Send a request whose answer follows a stream. `take` must read the whole stream."""
        with self._channel_for(verb) as channel:
            return channel.receive_stream(verb, take, payload, wait_s=wait_s, total_s=total_s, **args)

    def execute(
        self,
        verb: str,
        payload: bytes,
        take: Callable[[int, bytes], None],
        source: MessageSource,
        **args: Any,
    ) -> AgentReply:
        """Send a request that runs a program. `take` gets the program's output."""
        with self._channel_for(verb) as channel:
            return channel.execute(verb, payload, take, source, **args)

    def open_socket(self, path: str) -> Socket:
        """Open a stream to a Unix socket on the host. It ends with the host client."""
        return self._noted(super().open_socket(path))

    def open_port(self, port: int) -> Socket:
        """Open a stream to a TCP port of the host's loopback. It ends with the host client."""
        return self._noted(super().open_port(port))

    def open_program(self, words: Sequence[str]) -> Socket:
        """Open a stream to a program on the host. It ends with the host client."""
        return self._noted(super().open_program(words))

    def close(self) -> None:
        """Close this client's reserved channel and its streams."""
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, None
            streams, self._streams = self._streams, []
        if kept is not None:
            self._circuit.pool.discard(kept)
        for stream in streams:
            _close(stream)

    def _noted(self, stream: Socket) -> Socket:
        with self._lock:
            if not self._is_closed:
                self._streams.append(stream)
                return stream
        _close(stream)
        raise self._closed_error()

    @contextlib.contextmanager
    def _channel_for(self, verb: str) -> Iterator[AgentChannel]:
        """Yield the channel for a call: the reserved one, or a shared one for verbs outside HOLDING."""
        with self._lock:
            if self._is_closed:
                raise self._closed_error()
            kept = self._kept
        if kept is None and verb not in HOLDING:
            with self._circuit.pool.shared() as channel:
                yield channel
            return
        channel = kept or self._keep()
        try:
            yield channel
        except AgentError:
            self._let_go(channel)
            raise
        if verb in RELEASING:
            self._let_go(channel)

    def _keep(self) -> AgentChannel:
        channel = self._circuit.pool.keep()
        with self._lock:
            if not self._is_closed:
                self._kept = channel
                return channel
        self._circuit.pool.discard(channel)
        raise self._closed_error()

    def _let_go(self, channel: AgentChannel) -> None:
        """Share the reserved channel again if its agent holds nothing.

        Keep a broken one until the client is closed.
        """
        try:
            if channel.call("holds").values.get("holds") is not False:
                return
        except HostError:
            return
        with self._lock:
            is_kept, self._kept = self._kept is channel, None
        if is_kept:
            self._circuit.pool.release(channel)

    def _closed_error(self) -> ConnectionLostError:
        return ConnectionLostError(self.host, f"{self.host}: its client was closed")


class _ClientReader:
    """Reads runs for one host client. Requests that wait for news are joined with those of other clients."""

    def __init__(self, calls: SharedCalls, joined: BatchedReader) -> None:
        self._lone = SingleReader(calls)
        self._joined = joined

    def read(self, run: str, request: Mapping[str, Any], wait_s: float | None) -> AgentReply:
        if wait_s is None:
            return self._lone.read(run, request, None)
        return self._joined.read(run, request, wait_s)


def _close(stream: Socket) -> None:
    with contextlib.suppress(HostError, OSError, EOFError):  # it is lost with the connection
        stream.close()
