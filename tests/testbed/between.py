"""A Unix socket in front of an engine's: what a client asks of the engine waits here while a test wants it to."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Self


class Between:
    """A relay from a socket of its own to an engine's, which keeps back what asks for `held`. Use it in a `with`."""

    def __init__(self, path: Path, target: Path, held: bytes) -> None:
        """Name its socket, the engine's, and the words of a request that it keeps back, e.g. b"/start"."""
        self.path = path
        self.target = target
        self.held = held
        self.is_asked = threading.Event()
        """Whether somebody has asked for what is held."""
        self.gate = threading.Event()
        """Lets it through from then on."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self.path.chmod(0o666)
        self._listener.listen(64)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # close alone would not wake who waits in accept
        self._listener.close()
        self._thread.join(10)
        self.gate.set()
        self.path.unlink()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed: the test is over
            engine = socket.socket(socket.AF_UNIX)
            try:
                engine.connect(str(self.target))
            except OSError:  # it is down: whoever asks is told by the end of the stream
                client.close()
                continue
            for source, sink, held in ((client, engine, self.held), (engine, client, None)):
                threading.Thread(target=self._carry, args=(source, sink, held), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, held: bytes | None) -> None:
        with contextlib.suppress(OSError):  # one of them has gone, and the other is told so below
            while piece := source.recv(1 << 16):
                if held is not None and held in piece:
                    self.is_asked.set()
                    self.gate.wait()
                sink.sendall(piece)
        with contextlib.suppress(OSError):  # it has gone as well
            sink.shutdown(socket.SHUT_WR)
