"""The client's end of the channel to an agent: requests and replies, with a deadline on every wait.

Other code makes its requests through a `HostClient`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Protocol, Self, TypedDict, cast

from launcher.agent.record import strict_json
from launcher.base.json_file import JsonObject, well_formed
from launcher.base.text import printable
from launcher.errors import AgentError, ConnectionLostError, HostError, MalformedAnswerError
from launcher.transport.agent_file import MAGIC, agent_file
from launcher.transport.agent_input import MessageSource, encode_message
from launcher.values.record import DISK_WORDS

DEADLINE_S = 30.0
PING_S = 15.0
HASHING_S = 600.0
GREETING_S = 60.0
MAX_LINE = 16 * 1024 * 1024
MAX_PAYLOAD = 64 * 1024 * 1024
MAX_CHUNK = 4 * 1024 * 1024
MAX_NOISE = 64 * 1024
MAX_SEEN = 500
MIN_RATE = 8192
"""Bytes per second. Each received byte extends the deadline of the whole answer by 1 / MIN_RATE seconds."""
MAX_UNASKED = 16
"""The maximum number of unrequested messages. While a program runs, one more is allowed per second."""
_LOG = logging.getLogger(__name__)
_ROOT_ID = re.compile(r"[0-9a-f]{32}")


class ByteStream(Protocol):
    """A two-way stream of bytes that behaves like a socket."""

    def settimeout(self, timeout: float | None, /) -> None:
        """Limit the waits of recv and sendall, in seconds."""

    def recv(self, size: int, /) -> bytes:
        """Return some bytes, or none at the end of the stream."""

    def sendall(self, data: bytes, /) -> None:
        """Send all bytes."""

    def close(self) -> None:
        """Close the stream and its carrier."""


class Socket(ByteStream, Protocol):
    """A stream whose two directions can be closed separately, like a socket's."""

    def shutdown(self, how: int, /) -> None:
        """Close the receiving direction (SHUT_RD), the sending one (SHUT_WR), or both (SHUT_RDWR)."""


class Opener(Protocol):
    """A connection to a host that can open streams to sockets, ports and programs, beside the agent."""

    @property
    def about(self) -> str:
        """How the host is reached, in a few words."""

    def by_hand(self, command: str) -> str:
        """Return the command line by which a user runs a shell command on the host."""

    def open_socket(self, path: str) -> Socket:
        """Open a stream to a Unix socket on the host.

        Raises RefusedStreamError, or HostError for a lost connection.
        """

    def open_port(self, port: int) -> Socket:
        """Open a stream to a TCP port of the host's loopback.

        Raises PortClosedError; RefusedStreamError if the host forbids it, or HostError if the connection
        is lost.
        """

    def open_program(self, words: Sequence[str]) -> Socket:
        """Open a stream to the standard input and output of a program on the host. Raises HostError."""

    def sever(self) -> None:
        """Cut the connection as a failing network would. Threads that wait for an answer get an error."""

    def close(self) -> None:
        """Close the connection. Runs continue."""


class ForwardingOpener:
    """An opener that forwards its calls to another one. As a context manager it is closed at the end."""

    def __init__(self, opener: Opener) -> None:
        """Forward all calls to `opener`."""
        self._opener = opener

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def about(self) -> str:
        """How the host is reached, in a few words."""
        return self._opener.about

    def by_hand(self, command: str) -> str:
        """Return the command line by which a user runs a shell command on the host."""
        return self._opener.by_hand(command)

    def open_socket(self, path: str) -> Socket:
        """Open a stream to a Unix socket on the host."""
        return self._opener.open_socket(path)

    def open_port(self, port: int) -> Socket:
        """Open a stream to a TCP port of the host's loopback."""
        return self._opener.open_port(port)

    def open_program(self, words: Sequence[str]) -> Socket:
        """Open a stream to the standard input and output of a program on the host."""
        return self._opener.open_program(words)

    def sever(self) -> None:
        """Cut the connection without closing it properly."""
        self._opener.sever()

    def close(self) -> None:
        """Close the connection. Runs continue."""
        self._opener.close()


class Link(ByteStream, Opener, Protocol):
    """A stream to an agent, together with its connection. `close` frees both."""


class AnswerDeadline:
    """The time limits of an answer: `wait_s` for the next bytes, and `total_s`, if given, for all of them.

    Each received byte extends `total_s` by 1 / MIN_RATE seconds.
    """

    def __init__(self, wait_s: float, total_s: float | None = None) -> None:
        self._wait_s = wait_s
        self._total_s = total_s
        self._received = 0
        self.begin()

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._began

    def wait_s(self) -> float:
        """Return the seconds to wait for the next bytes. Raises TimeoutError once the total time is over."""
        if self._total_s is None:
            return self._wait_s
        left = self._total_s + self._received / MIN_RATE - self.seconds
        if left <= 0:
            raise TimeoutError
        return min(self._wait_s, left)

    def count(self, size: int) -> None:
        """Count received bytes."""
        self._received += size


class AgentMessage(TypedDict, total=False):
    """A line of an agent: an answer, with `ok` or `error`, or a part of a stream. `size` bytes follow it."""

    id: int | None
    ok: JsonObject
    error: JsonObject
    stream: int
    chunk: object
    size: int


class AgentReply:
    """The reply to a request: its values, and the raw bytes that follow them."""

    def __init__(self, values: JsonObject, payload: bytes) -> None:
        self.values = values
        self.payload = payload


class Calls(Opener, Protocol):
    """The requests of a host client to an agent: over one channel, or over one of several."""

    @property
    def host(self) -> str:
        """The host's name."""

    @property
    def root_id(self) -> str:
        """The random id of the host's root. Empty if the host has none."""

    def call(
        self, verb: str, payload: bytes = b"", *, deadline_s: float = DEADLINE_S, **args: Any
    ) -> AgentReply:
        """Send a request and return the answer."""

    def send_stream(
        self, verb: str, payload: bytes, fill: Callable[[IO[bytes]], None], **args: Any
    ) -> AgentReply:
        """Send a request that is followed by a stream. `fill` writes the stream."""

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

    def execute(
        self,
        verb: str,
        payload: bytes,
        take: Callable[[int, bytes], None],
        source: MessageSource,
        **args: Any,
    ) -> AgentReply:
        """Send a request that runs a program. `take` gets the program's output."""


def refusal(host: str, error: Mapping[str, Any]) -> AgentError:
    """Return an agent's refusal as an AgentError."""
    code, text = str(error.get("code")), printable(str(error.get("message")))
    more = error.get("values")
    known = more if isinstance(more, dict) else None
    disk = DISK_WORDS.get(code)
    words = f"{disk} on {host}: {text}\n  {_mend(host, code)}" if disk else f"{host}: {text}"
    return AgentError(host, code, words, known)


def _mend(host: str, code: str) -> str:
    if code == "read-only":
        return "the host's kernel log has the cause; once the disk accepts writes, repeat the command"
    return f"make room   launch gc --host {host}     or   launch rm RUN"


def _pass() -> None:
    pass


class AgentChannel(ForwardingOpener):
    """The channel to an agent on a host. One request at a time. An idle channel sends pings."""

    def __init__(self, host: str, link: Link) -> None:
        """Take over a new link. Skip the login's output, and send the agent's file if requested.

        Raises HostError if no agent answers.
        """
        super().__init__(link)
        self.host = host
        self.root_id = ""
        """The random id of the host's root, which identifies a run's root."""
        self._link = link
        self._rest = bytearray()
        self._patience = AnswerDeadline(DEADLINE_S, GREETING_S)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._next_id = 0
        self._last_said = time.monotonic()
        self._is_closed = threading.Event()
        try:
            self._greet()
        except BaseException:
            link.close()
            raise
        threading.Thread(target=self._keep_alive, name=f"ping {host}", daemon=True).start()

    def close(self) -> None:
        """Close the channel. The agent exits; runs continue."""
        self._is_closed.set()
        self._link.close()

    def call(
        self,
        verb: str,
        payload: bytes = b"",
        *,
        deadline_s: float = DEADLINE_S,
        sent: Callable[[], None] = _pass,
        **args: Any,
    ) -> AgentReply:
        """Send a request and return the answer. `sent` is called once the whole request is sent.

        The deadline applies to the whole answer; bytes that arrive faster than MIN_RATE extend it. Raises
        AgentError if the agent refuses, ConnectionLostError if the link ends or the deadline passes.
        """
        began = time.monotonic()
        with self._lock, self._link_errors():
            self._request(verb, payload, args, AnswerDeadline(deadline_s, deadline_s))
            sent()
            reply = self._answer()
        _LOG.debug("%s: %s took %.3f s", self.host, verb, time.monotonic() - began)
        return reply

    def hasten(self) -> None:
        """Make the agent answer a waiting request at once. Call this from another thread than the request's.

        If the message arrives too late, the agent takes it for a request without an id.
        """
        with contextlib.suppress(OSError, HostError), self._sending:  # the waiting request gets the error too
            self._link.sendall(encode_message("ping"))

    def send_stream(
        self, verb: str, payload: bytes, fill: Callable[[IO[bytes]], None], **args: Any
    ) -> AgentReply:
        """Send a request that is followed by a stream. `fill` writes the stream.

        If `fill` raises, the link is closed, and the agent removes the incomplete stream.
        """
        with self._lock, self._link_errors():
            self._request(verb, payload, args, AnswerDeadline(DEADLINE_S, DEADLINE_S))
            try:
                fill(cast("IO[bytes]", _ChunkWriter(self._link.sendall)))
            except BaseException:
                self.close()
                raise
            self._link.sendall(b'{"chunk":0}\n')
            self._patience = AnswerDeadline(HASHING_S, HASHING_S)
            return self._answer()

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
        """Send a request whose answer follows a stream. `take` must read the whole stream.

        `wait_s` limits the wait for the next bytes, `total_s` the whole time; bytes that arrive faster than
        MIN_RATE extend `total_s`. Raises AgentError if the agent refuses, before or during the stream.
        Raises MalformedAnswerError if the stream is longer than `take` reads. Errors of `take` are raised
        unchanged.
        """
        with self._lock:
            with self._link_errors():
                self._request(verb, payload, args, AnswerDeadline(wait_s, total_s))
            reader = Incoming(self._chunk)
            try:
                take(reader)
                if reader.read(1):
                    raise MalformedAnswerError(
                        self.host, f"{self.host}: the host sent more bytes than it announced"
                    )
            except AgentError:
                raise
            except BaseException:
                self.close()
                raise
            with self._link_errors():
                return self._answer()

    def execute(
        self,
        verb: str,
        payload: bytes,
        take: Callable[[int, bytes], None],
        source: MessageSource,
        **args: Any,
    ) -> AgentReply:
        """Send a request that runs a program. `take` gets its output as (1 or 2, bytes) while it runs.

        `source` yields the messages to the agent during that time. If `source` raises, the link is closed, and
        the agent ends the program. Raises AgentError if the agent refuses, ConnectionLostError if the link
        ends or is silent. Errors of `take` are raised unchanged.
        """
        with self._lock:
            with self._link_errors():
                self._request(verb, payload, args, AnswerDeadline(DEADLINE_S))
            is_over = threading.Event()
            talker = threading.Thread(target=self._tell, args=(source(is_over),), daemon=True)
            talker.start()
            empty = 0
            try:
                while True:
                    with self._link_errors():
                        message, data = self._message(MAX_CHUNK)
                    if "stream" not in message:
                        is_over.set()
                        talker.join()
                        return self._unwrap(message, data)
                    if data and message["stream"] in (1, 2):
                        take(message["stream"], data)
                        continue
                    empty += 1
                    if empty > MAX_UNASKED + self._patience.seconds:
                        raise self._flooded()
            except AgentError:
                raise
            except BaseException:
                self.close()
                raise

    def _tell(self, words: Iterator[bytes]) -> None:
        """Send the agent these messages while its program runs, and regular pings.

        If a message arrives too late, the agent takes it for a request without an id.
        """
        next_ping = time.monotonic() + PING_S
        for said in words:
            if self._is_closed.is_set():
                return
            is_due = time.monotonic() >= next_ping
            if is_due:
                next_ping = time.monotonic() + PING_S
            try:
                self._link.sendall(said + encode_message("ping") if is_due else said)
            except (OSError, HostError):
                return  # the next read finds the link broken, and reports it

    # The wire format

    def _greet(self) -> None:
        self._link.settimeout(DEADLINE_S)
        with self._link_errors():
            word, more = self._magic()
            if word == "need":
                self._link.sendall(agent_file().to_send)
                self._patience = AnswerDeadline(DEADLINE_S, GREETING_S)
                word, more = self._magic()
            if word == "have" and _ROOT_ID.fullmatch(more):
                self.root_id = more
            if word == "no-python":
                there = f", but {printable(more)[:MAX_SEEN]}" if more else ""
                raise HostError(
                    self.host,
                    f"{self.host}: no Python >= 3.8 starts there{there}\n"
                    f'  install one, or name it: python = "/path/to/python3" under [hosts.{self.host}]',
                )
            if word == "error":
                raise HostError(
                    self.host,
                    f'{self.host}: {printable(more)}\n  set root = "/a/writable/folder" for this host',
                )

    def _magic(self) -> tuple[str, str]:
        """Return the next word of the agent's boot program and its argument. Skip the login's output."""
        noise = 0
        while not (line := self._line()).startswith(MAGIC):
            noise += len(line) + 1
            if noise > MAX_NOISE:
                raise HostError(
                    self.host, f"{self.host}: its login prints endless output, and no agent answered"
                )
        word, _, more = line.removeprefix(MAGIC).decode("utf-8", "replace").strip().partition(" ")
        return word, more

    def _request(self, verb: str, payload: bytes, args: JsonObject, patience: AnswerDeadline) -> None:
        self._next_id += 1
        self._patience = patience
        request: dict[str, object] = {"id": self._next_id, "verb": verb, "args": args}
        if payload:
            request["size"] = len(payload)
        self._link.settimeout(patience.wait_s())
        with self._sending:
            self._link.sendall(json.dumps(request).encode() + b"\n" + payload)
        patience.begin()
        self._last_said = time.monotonic()

    def _answer(self) -> AgentReply:
        for _ in range(MAX_UNASKED):
            message, payload = self._message()
            if message.get("id", 0) is not None:
                return self._unwrap(message, payload)
            # the answer to a late message of `_tell`
        raise self._flooded()

    def _flooded(self) -> ConnectionLostError:
        return ConnectionLostError(self.host, f"{self.host}: the agent sends unrequested answers")

    def _unwrap(self, message: AgentMessage, payload: bytes) -> AgentReply:
        if message.get("id") != self._next_id:
            raise ConnectionLostError(self.host, f"{self.host}: the agent answered another question")
        error = message.get("error")
        if isinstance(error, dict):
            raise refusal(self.host, error)
        values = message.get("ok")
        if not isinstance(values, dict):
            raise ConnectionLostError(self.host, f"{self.host}: the agent's answer has no values")
        return AgentReply(values, payload)

    def _message(self, most: int = MAX_PAYLOAD) -> tuple[AgentMessage, bytes]:
        line = self._line()
        try:
            message: AgentMessage = well_formed(strict_json.decode(line), line)
            size = int(message.get("size", 0))
            if not 0 <= size <= most:
                raise ValueError(size)
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
            raise ConnectionLostError(
                self.host, f"{self.host}: the agent sent a malformed message: {printable(repr(line[:80]))}"
            ) from error
        return message, self._exactly(size)

    def _chunk(self) -> bytes:
        """Return the next chunk of a stream, or none at its end."""
        with self._link_errors():
            message, payload = self._message(MAX_CHUNK)
        if "chunk" not in message:
            self._unwrap(message, payload)
            raise ConnectionLostError(
                self.host, f"{self.host}: the agent answered before its stream had ended"
            )
        return payload

    def _line(self) -> bytes:
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0:
            searched = len(self._rest)
            if searched > MAX_LINE:
                raise ConnectionLostError(self.host, f"{self.host}: a line does not end")
            self._fill()
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    def _exactly(self, size: int) -> bytes:
        while len(self._rest) < size:
            self._fill()
        data = bytes(self._rest[:size])
        del self._rest[:size]
        return data

    def _fill(self) -> None:
        self._link.settimeout(self._patience.wait_s())
        piece = self._link.recv(1 << 18)
        if not piece:
            raise ConnectionLostError(self.host, f"{self.host}: the connection ended")
        self._patience.count(len(piece))
        self._rest += piece

    @contextlib.contextmanager
    def _link_errors(self) -> Iterator[None]:
        """Turn a link's errors into ConnectionLostError. The only place that does."""
        try:
            yield
        except TimeoutError as error:
            raise ConnectionLostError(self.host, f"{self.host}: no answer within the deadline") from error
        except (OSError, EOFError) as error:
            raise ConnectionLostError(self.host, f"{self.host}: the connection broke: {error}") from error

    def _keep_alive(self) -> None:
        while not self._is_closed.wait(PING_S / 3):
            if time.monotonic() - self._last_said < PING_S:
                continue
            try:
                self.call("ping")
            except HostError:
                return  # the next request finds the link broken, and reports it


class _ChunkWriter:
    """The writing end of a stream in chunks."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send

    def write(self, data: bytes) -> int:
        self._send(b'{"chunk":%d}\n' % len(data) + data)
        return len(data)


class Incoming:
    """A stream of bytes that a host sends, in chunks."""

    def __init__(self, chunk: Callable[[], bytes]) -> None:
        self._chunk = chunk
        self._rest = b""
        self._is_over = False

    def read(self, size: int, /) -> bytes:
        """Return this many bytes, or fewer at the end of the stream."""
        while len(self._rest) < size and not self._is_over:
            piece = self._chunk()
            self._is_over = not piece
            self._rest += piece
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def read_some(self) -> bytes:
        """Return the bytes that have arrived, at least one, or none at the end of the stream."""
        piece, self._rest = self.read(1) + self._rest, b""
        return piece
