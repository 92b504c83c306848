"""The streams of one attempt: the output of its command, and a connection from each of its workers."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import socket
import time
from typing import IO, Callable, Dict, Iterator, List, NamedTuple, Tuple

from ..record.rundir import HEARTBEAT_S, Run
from ..system import socket_folders

DRAIN_S = 2.0
GATHER_S = 0.001
"""The least time between reads of workers that report constantly: reading each line alone would cost too much."""
MAX_EVENT_BYTES = 16 * 1024 * 1024
BACKLOG = 4096
"""The requested length of the kernel's queue of connecting workers; the kernel may shorten it."""
SPARE_DESCRIPTORS = 128
"""Descriptors kept for the agent: the record, digests of checkpoints, child programs."""
_MAX_SIGNALS = 4096


@contextlib.contextmanager
def listening(run: Run) -> Iterator[Tuple[socket.socket, str]]:
    """Listen on a socket for the workers of a run. Yield the socket and its path."""
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(socket_folders.socket_path(run.root, run.id))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(path)
        listener.listen(BACKLOG)
        yield listener, path


def most_connections() -> int:
    """Return how many workers may be connected at once, by the soft limit of open descriptors."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    return BACKLOG if unlimited else min(BACKLOG, max(SPARE_DESCRIPTORS // 2, soft - SPARE_DESCRIPTORS))


class Receiver(NamedTuple):
    """The callbacks for the streams' data.

    `finish_output` is called when no more output can follow, `beat` every few seconds.
    """

    take_lines: Callable[[List[bytes]], None]
    take_output: Callable[[bytes], None]
    finish_output: Callable[[], None]
    beat: Callable[[], None]


class Streams:
    """Read the command's output and the lines of its workers, and pass them on.

    Workers beyond a bound, and their data, wait until others have closed their connections.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listener: socket.socket,
        output: IO[bytes],
        receiver: Receiver,
    ) -> None:
        """Register the streams with a selector."""
        self._selector = selector
        self._listener = listener
        self._output = output
        self._receiver = receiver
        self._rests: Dict[socket.socket, bytearray] = {}
        self._most = most_connections()
        self._is_accepting = True
        self._next_beat_s = 0.0
        self._read_at_s = 0.0
        os.set_blocking(output.fileno(), False)
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(output, selectors.EVENT_READ)

    def listen(self, stream: IO[bytes], take: Callable[[], object]) -> None:
        """Read another stream too: `take` is called when it has data or has ended."""
        self._selector.register(stream, selectors.EVENT_READ, take)

    def forget(self, stream: IO[bytes]) -> None:
        """Stop reading another stream."""
        self._selector.unregister(stream)

    @contextlib.contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """Let any signal, including SIGCHLD, end a wait at once, so that waits may be long."""
        ends = os.pipe()
        for end in ends:
            os.set_blocking(end, False)
        with os.fdopen(ends[0], "rb", 0) as source, os.fdopen(ends[1], "wb", 0) as sink:
            handler = signal.signal(
                signal.SIGCHLD, lambda *_: None
            )  # a signal without a Python handler wakes nothing
            before = signal.set_wakeup_fd(sink.fileno(), warn_on_full_buffer=False)
            self.listen(source, lambda: source.read(_MAX_SIGNALS))
            try:
                yield
            finally:
                self.forget(source)
                signal.set_wakeup_fd(before)
                signal.signal(signal.SIGCHLD, handler or signal.SIG_DFL)

    def turn(self, timeout_s: float) -> bool:
        """Wait for data and pass it on. Return whether any came."""
        now_s = time.monotonic()
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + HEARTBEAT_S
            self._receiver.beat()
            self._accept_again()
        ready = self._selector.select(timeout_s)
        if any(key.fileobj in self._rests for key, _ in ready):
            self._gather()
        for key, _ in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._output:
                self._take_output()
            elif key.data is not None:
                key.data()
            elif isinstance(key.fileobj, socket.socket):
                self._take_lines(key.fileobj)
        return bool(ready)

    def drain(self) -> None:
        """Read the rest of the pipes. All writers have ended, but the time is bounded anyway."""
        deadline_s = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline_s and self.turn(0.0):
            pass
        self._receiver.finish_output()
        for connection, rest in self._rests.items():
            if rest:
                self._receiver.take_lines([bytes(rest)])
            connection.close()

    def _gather(self) -> None:
        """Let lines of workers accumulate if some were read just now."""
        wait_s = self._read_at_s + GATHER_S - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        self._read_at_s = time.monotonic()

    def _accept(self) -> None:
        try:
            connection, _address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left, in this process or on the host
            self._pause()
            return
        connection.setblocking(False)
        self._rests[connection] = bytearray()
        self._selector.register(connection, selectors.EVENT_READ)
        if len(self._rests) >= self._most:
            self._pause()

    def _pause(self) -> None:
        """Accept no more workers until one has disconnected, or until the next heartbeat."""
        self._selector.unregister(self._listener)
        self._is_accepting = False

    def _accept_again(self) -> None:
        if not self._is_accepting and len(self._rests) < self._most:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._is_accepting = True

    def _take_output(self) -> None:
        piece = self._output.read(1 << 16)
        if piece:
            self._receiver.take_output(piece)
        elif piece == b"":
            self._selector.unregister(self._output)
            self._receiver.finish_output()

    def _take_lines(self, connection: socket.socket) -> None:
        rest = self._rests[connection]
        try:
            piece = connection.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:  # reset by a killed process: the complete lines before have been taken
            piece = b""
        rest += piece
        lines = bytes(rest).split(b"\n") if b"\n" in piece else [bytes(rest)]
        if len(lines) > 1:
            self._rests[connection] = bytearray(lines[-1])
            self._receiver.take_lines([line for line in lines[:-1] if line])
        if not piece or len(self._rests[connection]) > MAX_EVENT_BYTES:
            self._selector.unregister(connection)
            del self._rests[connection]
            connection.close()
            self._accept_again()
