"""The connection to the client: lines and raw bytes over two descriptors."""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Mapping

from ..record import strict_json

SILENCE_S = 60.0
"""The seconds for which a client may send nothing, or accept nothing, before it counts as gone.

A client sends a ping well within this time.
"""
MAX_LINE = 16 * 1024 * 1024  # a request lists all files that follow; a client accepts equally long answers


class ClientConnection:
    """Lines and raw bytes over two descriptors. EOFError and BrokenPipeError mean that the client is gone."""

    def __init__(self, reader: int, writer: int) -> None:
        """Use these descriptors."""
        os.set_blocking(writer, False)
        self._reader = reader
        self._writer = writer
        self._come = b""
        self._taken = 0
        """The number of received bytes that were consumed. To cut them off each time would copy the rest."""
        self._heard = time.monotonic()

    def has_input(self, timeout_s: float) -> bool:
        """Whether the client sends something, or leaves, within the time."""
        return self._taken < len(self._come) or bool(select.select([self._reader], [], [], timeout_s)[0])

    def wait(self, sources: list[int], timeout_s: float) -> list[int] | None:
        """Wait for the client, or for one of `sources`; return the readable sources.

        Returns None if the client accepts no more output, so that nothing should be read now. Raises EOFError
        if the client has been silent for too long.
        """
        if time.monotonic() > self._heard + SILENCE_S:
            raise EOFError
        if not select.select([], [self._writer], [], 0.0)[1]:
            select.select([self._reader], [self._writer], [], timeout_s)
            return None
        ready = select.select([self._reader, *sources], [], [], timeout_s)[0]
        return [source for source in ready if source != self._reader]

    def read_line(self) -> bytes:
        """Return the next line. Raises EOFError if the client has gone."""
        while (end := self._come.find(b"\n", self._taken)) < 0:
            if len(self._come) - self._taken > MAX_LINE:
                raise EOFError
            self._fill()
        line = self._come[self._taken : end]
        self._taken = end + 1
        return line

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises EOFError if the client has gone."""
        pieces = []
        while size:
            if self._taken == len(self._come):
                self._fill()
            piece = self._come[self._taken : self._taken + size]
            self._taken += len(piece)
            size -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def write(self, message: Mapping[str, object], payload: bytes = b"") -> None:
        """Send a message and raw bytes. Raises BrokenPipeError if the client accepts nothing for too long."""
        if payload:
            message = dict(message, size=len(payload))
        for part in (strict_json.encode(message).encode() + b"\n", payload):
            view = memoryview(part)
            while view:
                if not select.select([], [self._writer], [], SILENCE_S)[1]:
                    raise BrokenPipeError
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._writer, view) :]

    def _fill(self) -> None:
        if not select.select([self._reader], [], [], SILENCE_S)[0]:
            raise EOFError
        piece = os.read(self._reader, 1 << 18)
        if not piece:
            raise EOFError
        self._come = self._come[self._taken :] + piece
        self._taken = 0
        self._heard = time.monotonic()
