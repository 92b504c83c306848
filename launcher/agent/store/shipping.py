"""Streams to and from a client in chunks: raw bytes, or JSON lines."""

from __future__ import annotations

import os
import time
from typing import Any

from ..record import strict_json

CHUNK = 1 << 18
SIGN_OF_LIFE_S = 1.0


class ChunkReader:
    """A stream from the client in chunks: a line {"chunk": size} before each, {"chunk": 0} at the end."""

    def __init__(self, wire: Any) -> None:
        """Read chunks from the wire."""
        self._wire = wire
        self._left = 0
        """The unread bytes of the present chunk."""
        self._is_over = False

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the stream."""
        pieces = []
        while size and not self._is_over:
            if not self._left:
                self._left = int(strict_json.decode(self._wire.read_line())["chunk"])
                self._is_over = not self._left
            piece = self._wire.read(min(size, self._left))
            self._left -= len(piece)
            size -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def skip_rest(self) -> None:
        """Read to the end of the stream, so that the next line is a request."""
        while self.read(CHUNK):
            continue


class ChunkWriter:
    """A stream to the client in chunks."""

    def __init__(self, wire: Any) -> None:
        """Write chunks to the wire."""
        self._wire = wire
        self._rest = bytearray()

    def write(self, data: bytes) -> None:
        """Buffer bytes; send them once they fill a chunk."""
        self._rest += data
        if len(self._rest) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Send the buffered bytes."""
        if self._rest:
            self._wire.write({"chunk": len(self._rest)}, bytes(self._rest))
            self._rest = bytearray()

    def finish(self) -> None:
        """Send the end of the stream."""
        self.flush()
        self._wire.write({"chunk": 0})


def send_file(stream: ChunkWriter, descriptor: int, left: int) -> bool:
    """Send the next `left` bytes of an open file; return False if it has fewer."""
    while left > 0:
        piece = os.read(descriptor, min(left, CHUNK))
        if not piece:
            return False
        left -= len(piece)
        stream.write(piece)
    return True


class LineWriter:
    """JSON lines to the client in chunks. While files are read, a line with the byte count shows progress."""

    def __init__(self, wire: Any) -> None:
        """Write lines to the wire."""
        self._chunks = ChunkWriter(wire)
        self._read = 0
        self._sent_at = time.monotonic()

    def put(self, line: Any) -> None:
        """Buffer a line; it is sent with others, within seconds."""
        self.put_text(strict_json.encode(line))

    def put_text(self, line: str) -> None:
        """Buffer a line that is JSON already."""
        self._chunks.write(line.encode() + b"\n")
        now = time.monotonic()
        if now - self._sent_at >= SIGN_OF_LIFE_S:
            self._sent_at = now
            self._chunks.flush()

    def advance(self, count: int) -> None:
        """Count bytes that were read, and report the total about once a second."""
        self._read += count
        if time.monotonic() - self._sent_at >= SIGN_OF_LIFE_S:
            self.put(self._read)

    def finish(self) -> None:
        """Send the end of the stream."""
        self._chunks.finish()
