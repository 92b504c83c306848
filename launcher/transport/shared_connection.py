"""A shared connection to a host, on which many desks may be open at once.

    with open_line(host) as line:
        with line.desk() as desk:
            desk.runs.summaries()

The connection is made for the first desk. What desks ask goes over few channels of it, each with an agent of its own:

- `runs.read` that waits for news: one channel for all desks, over which one thread asks about all runs at once;
- a desk that prepares a run, holds a lock, or resumes a run keeps a channel until its agent holds nothing for it any more;
- everything else borrows one of the channels that all desks share, for one call.

A shared connection may be used by any thread, and so may `sever` and `close` of a desk. Otherwise a desk is for one thread at a time, as
any desk is. When the connection breaks, every call of all its desks raises ConnectionLostError, and the next `desk`
connects again: once, however many threads ask for one.
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
from launcher.transport.agent_input import Company
from launcher.transport.channel import (
    DEADLINE_S,
    HASHING_S,
    AgentChannel,
    AgentReply,
    Incoming,
    Link,
    Opener,
    Passing,
    Socket,
)
from launcher.transport.channel_pool import ChannelPool
from launcher.transport.client.desk import HostClient
from launcher.transport.client.run_reading import JoinedReader, LoneReader, Reader
from launcher.values.host import Host

HOLDING = ("create", "hold", "resume")
"""Verbs after which an agent may hold something that ends with its channel."""
LETTING_GO = ("start", "await", "hold", "resume", "seal_environment")
"""Verbs after which it may hold nothing any more."""
JUST_NOW_S = 0.5
"""An attempt to connect that failed just now stands for those who ask right after: many lose the link together."""


class Connection(Opener, Protocol):
    """A connection to a host, with an agent behind each link: `close` closes them too. Any thread may use it."""

    @property
    def is_open(self) -> bool:
        """Whether it is neither closed nor lost."""

    def open_link(self) -> Link:
        """Start one more agent, whose link ends alone. Raises RefusedStreamError if the host starts no more of them."""


class SharedConnection:
    """One connection to a host, for many desks; see above."""

    def __init__(
        self,
        host: Host,
        connect: Callable[[], Connection],
        make_desk: Callable[[LineCalls, Reader], HostClient],
    ) -> None:
        """Connect to nothing yet. `make_desk` makes a desk that asks through what it is given, and reads runs by the other."""
        self.host = host.name
        self._way = host.way
        self._connect = connect
        self._make_desk = make_desk
        self._lock = threading.Lock()
        self._attempt: Future[_Circuit] | None = None
        self._failed_at = 0.0
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def desk(self) -> HostClient:
        """Return a new desk; close it, or use it in a `with`. Connects if there is no connection, or it was lost.

        Raises HostError that says what to do.
        """
        circuit = self._connected()
        calls = LineCalls(circuit)
        return self._make_desk(calls, _DeskReader(calls, circuit.reader))

    def leads_to(self, host: Host) -> bool:
        """Whether a host is this connection's: it may be one of the same name that has moved, or that is reached otherwise."""
        return host.way == self._way

    def close(self) -> None:
        """Close the connection, and with it all desks. Runs continue."""
        with self._lock:
            self._is_closed = True
            attempt = self._attempt
        if attempt is not None and attempt.done() and attempt.exception() is None:
            attempt.result().close()

    def _connected(self) -> _Circuit:
        """Return the open connection. One thread makes it, and the others wait for the outcome."""
        with self._lock:
            attempt, before = self._attempt, None
            if self._is_closed:
                raise self._hung_up()
            is_ours = attempt is None or (attempt.done() and self._is_over(attempt))
            if is_ours:
                before, self._attempt = attempt, Future()
            attempt = self._attempt
        assert attempt is not None  # noqa: S101 - it was just made, if there was none
        if is_ours:
            self._make(attempt, before)
        return attempt.result()

    def _is_over(self, attempt: Future[_Circuit]) -> bool:
        """Whether an attempt that has ended counts no more: its connection is lost, or it failed a while ago."""
        if attempt.exception() is not None:
            return time.monotonic() - self._failed_at > JUST_NOW_S
        return not attempt.result().connection.is_open

    def _make(self, attempt: Future[_Circuit], before: Future[_Circuit] | None) -> None:
        """Connect, and end the attempt. What is left of the connection before is freed."""
        try:
            if before is not None and before.exception() is None:
                before.result().close()
            circuit = _Circuit(self.host, self._connect())
        except BaseException as error:
            self._failed_at = time.monotonic()
            # Ctrl-C is this thread's: the others try by themselves.
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

    def _hung_up(self) -> ConnectionLostError:
        return ConnectionLostError(self.host, f"{self.host}: the line was closed")


class _Circuit:
    """One connection, its channels, and its root: a root that was exchanged meanwhile is not the same host any more."""

    def __init__(self, host: str, connection: Connection) -> None:
        """Take over a fresh connection, and start the agent that reads runs. Raises HostError."""
        self.host = host
        self.connection = connection
        self.root_id: str | None = None
        try:
            first = self._open_channel()
        except BaseException:
            connection.close()
            raise
        self.root_id = first.root_id
        self.reader = JoinedReader(host, first, self._open_channel)
        self.pool = ChannelPool(host, self._open_channel)

    def close(self) -> None:
        """Hang up. The connection goes first: nothing waits for a link that is stuck."""
        self.connection.close()
        self.reader.close()
        self.pool.close()

    def _open_channel(self) -> AgentChannel:
        channel = AgentChannel(self.host, self.connection.open_link())
        if self.root_id not in (None, channel.root_id):
            channel.close()
            self.connection.sever()
            raise ConnectionLostError(self.host, f"{self.host}: its folder for runs was replaced meanwhile")
        return channel


class LineCalls(Passing):
    """What one desk of a shared connection asks through: a channel that it keeps, or those that all desks share."""

    def __init__(self, circuit: _Circuit) -> None:
        """Keep no channel yet."""
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
        """The random id of the host's root; empty if the host gives none."""
        return self._circuit.root_id or ""

    def call(
        self, verb: str, payload: bytes = b"", *, deadline_s: float = DEADLINE_S, **args: Any
    ) -> AgentReply:
        """Ask for a verb and return the answer."""
        with self._channel_for(verb) as channel:
            return channel.call(verb, payload, deadline_s=deadline_s, **args)

    def send_stream(
        self, verb: str, payload: bytes, fill: Callable[[IO[bytes]], None], **args: Any
    ) -> AgentReply:
        """Ask for a verb that takes a stream after its request; `fill` writes it."""
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
        """Ask for a verb that sends a stream before its answer; `take` reads it, all of it."""
        with self._channel_for(verb) as channel:
            return channel.receive_stream(verb, take, payload, wait_s=wait_s, total_s=total_s, **args)

    def execute(
        self, verb: str, payload: bytes, take: Callable[[int, bytes], None], company: Company, **args: Any
    ) -> AgentReply:
        """Ask for a verb that runs a program; `take` gets what it prints."""
        with self._channel_for(verb) as channel:
            return channel.execute(verb, payload, take, company, **args)

    def open_socket(self, path: str) -> Socket:
        """Open a stream to a Unix socket on the host, which ends with the desk."""
        return self._noted(super().open_socket(path))

    def open_port(self, port: int) -> Socket:
        """Open a stream to a TCP port of the host's loopback, which ends with the desk."""
        return self._noted(super().open_port(port))

    def open_program(self, words: Sequence[str]) -> Socket:
        """Open a stream to a program on the host, which ends with the desk."""
        return self._noted(super().open_program(words))

    def close(self) -> None:
        """Close what is this desk's: the channel that it keeps, and its streams."""
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
        raise self._hung_up()

    @contextlib.contextmanager
    def _channel_for(self, verb: str) -> Iterator[AgentChannel]:
        """Yield the channel for a call: the one that is kept, and for what is not HOLDING a shared one if there is none."""
        with self._lock:
            if self._is_closed:
                raise self._hung_up()
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
        if verb in LETTING_GO:
            self._let_go(channel)

    def _keep(self) -> AgentChannel:
        channel = self._circuit.pool.keep()
        with self._lock:
            if not self._is_closed:
                self._kept = channel
                return channel
        self._circuit.pool.discard(channel)
        raise self._hung_up()

    def _let_go(self, channel: AgentChannel) -> None:
        """Share the channel that was kept, if its agent holds nothing any more. A broken one stays until the desk is closed."""
        try:
            if channel.call("holds").values.get("holds") is not False:
                return
        except HostError:
            return
        with self._lock:
            is_kept, self._kept = self._kept is channel, None
        if is_kept:
            self._circuit.pool.release(channel)

    def _hung_up(self) -> ConnectionLostError:
        return ConnectionLostError(self.host, f"{self.host}: the desk was closed")


class _DeskReader:
    """Reads runs for one desk. What waits for news is joined with what the other desks wait for."""

    def __init__(self, calls: LineCalls, joined: JoinedReader) -> None:
        self._lone = LoneReader(calls)
        self._joined = joined

    def read(self, run: str, request: Mapping[str, Any], wait_s: float | None) -> AgentReply:
        if wait_s is None:
            return self._lone.read(run, request, None)
        return self._joined.read(run, request, wait_s)


def _close(stream: Socket) -> None:
    with contextlib.suppress(HostError, OSError, EOFError):  # it is lost with the connection
        stream.close()
