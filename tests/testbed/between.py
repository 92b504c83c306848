"""A Unix socket in front of an engine's: what a client asks of the engine waits here while a test wants it to."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Self


class Between:
    """A relay from a socket of its own to an engine's, which keeps back what asks for `held`.

    A request that waits is dropped when its client has gone. Use it in a `with`.
    """

    def __init__(self, path: Path, target: Path, held: bytes) -> None:
        """Name its socket, the engine's, and the words of a request that it keeps back, e.g. b"/start"."""
        self.path = path
        self.target = target
        self.held = held
        self.is_asked = threading.Event()
        """Whether somebody has asked for what is held."""
        self.is_dropped = threading.Event()
        """Whether the client left before its request was let through. The sshd of a killed client leaves a moment after it."""
        self.gate = threading.Event()
        """Lets it through from then on."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._serving: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self.path.chmod(0o666)
        self._listener.listen(64)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # close alone would not wake who waits in accept
        self._listener.close()
        self.gate.set()
        for thread in (self._thread, *self._serving):
            thread.join(10)
        self.path.unlink()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed: the test is over
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._serving.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as engine:
            try:
                engine.connect(str(self.target))
            except OSError:
                return  # it is down: whoever asks is told by the end of the stream
            back = threading.Thread(target=self._carry, args=(engine, client, None), daemon=True)
            back.start()
            self._carry(client, engine, self.held)
            back.join()

    def _carry(self, source: socket.socket, sink: socket.socket, held: bytes | None) -> None:
        with contextlib.suppress(OSError):  # one of them has gone, and the other is told so below
            while piece := source.recv(1 << 16):
                if held is not None and held in piece:
                    self.is_asked.set()
                    while not self.gate.wait(0.05) and not _has_left(source):
                        pass
                    if _has_left(source):
                        self.is_dropped.set()
                        break
                sink.sendall(piece)
        with contextlib.suppress(OSError):  # it has gone as well
            sink.shutdown(socket.SHUT_WR)


def _has_left(client: socket.socket) -> bool:
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False  # it waits for its answer
