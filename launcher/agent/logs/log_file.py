"""A log on disk or in memory, read in pieces to save memory: a log may have 100 MB."""

from __future__ import annotations

import io
from typing import BinaryIO, Iterator, Optional, Tuple, Union

PIECE = 1 << 21
_MAX_LINE_LENGTH = 16_000
_BACK = 1 << 18


class LogFile:
    """The lines of a log from an offset on. `before` is the number of lines before the offset."""

    def __init__(self, file: BinaryIO, start: int = 0, before: int = 0) -> None:
        """Read nothing yet. The file must be seekable."""
        self._file = file
        self.start = start
        self.before = before
        self.size = file.seek(0, io.SEEK_END)

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self.size - self.start

    def read(self) -> bytes:
        """Return all bytes."""
        return self._read_at(self.start, len(self))

    def end(self, most: int) -> bytes:
        """Return the last bytes, at most `most`."""
        at = max(self.start, self.size - most)
        return self._read_at(at, self.size - at)

    def pieces(self) -> Iterator[bytes]:
        """Yield the log in pieces. Each ends with a whole line or a redrawn bar.

        A line that is longer than a piece is shortened to its two ends.
        """
        rest = b""
        for at in range(self.start, self.size, PIECE):
            data = rest + self._read_at(at, min(PIECE, self.size - at))
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            rest = _both_ends(data[end:])
            if end:
                yield data[:end]
        if rest:
            yield rest

    def pieces_backwards(self) -> Iterator[Tuple[int, bytes]]:
        """Yield offset and bytes of pieces, the last piece first.

        Each begins where a line or a redrawn bar begins.

        Each part of a line that is longer than a piece counts as a line.
        """
        end = self.size
        while end > self.start:
            at = max(self.start, end - PIECE)
            data = self._read_at(at, end - at)
            breaks = (data.find(mark, 0, len(data) - 1) + 1 for mark in (b"\n", b"\r"))
            begin = min(filter(None, breaks), default=0) if at > self.start else 0
            end = at + begin
            yield end, data[begin:]

    def lines(self) -> Iterator[bytes]:
        """Yield the lines, without their ends."""
        rest = b""
        for piece in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
            rest = _both_ends(rest)
        yield rest

    def lines_backwards(self) -> Iterator[Tuple[int, bytes]]:
        """Yield the offset and the bytes of the lines, last line first."""
        end, rest = self.size, b""
        while end > self.start:
            at = max(self.start, end - _BACK)
            first, *others = self._read_at(at, end - at).split(b"\n")
            for line in reversed(others):
                end -= len(line)
                yield end, line + rest
                end, rest = end - 1, b""
            end, rest = at, _both_ends(first + rest)
        yield self.start, rest

    def newlines(self, until: int) -> int:
        """Return the number of lines that end before an offset of the file."""
        return sum(
            self._read_at(at, min(PIECE, until - at)).count(b"\n") for at in range(self.start, until, PIECE)
        )

    def number_of(self, text: bytes) -> Optional[int]:
        """Return the number of the first line that contains a text; None if none does."""
        number = self.before + 1
        for piece in self.pieces():
            at = piece.find(text)
            if at >= 0:
                return number + piece.count(b"\n", 0, at)
            number += piece.count(b"\n")
        return None

    def at(self, offset: int) -> LogFile:
        """Return the log that begins with the line at an offset."""
        return LogFile(self._file, offset, self.before + self.newlines(offset))

    def after(self, count: int) -> LogFile:
        """Return the log without its first `count` lines."""
        left, at = count, self.start
        while left and at < self.size:
            data = self._read_at(at, min(PIECE, self.size - at))
            found = data.count(b"\n")
            if found < left:
                left, at = left - found, at + len(data)
                continue
            place = -1
            for _ in range(left):
                place = data.find(b"\n", place + 1)
            left, at = 0, at + place + 1
        return LogFile(self._file, at, self.before + count)

    def _read_at(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)


def _both_ends(line: bytes) -> bytes:
    """Return a line, or the two ends of a line that is longer than a piece."""
    return line if len(line) <= PIECE else line[:_MAX_LINE_LENGTH] + line[-_MAX_LINE_LENGTH:]


AnyLog = Union[bytes, LogFile]


def as_file(log: AnyLog) -> LogFile:
    """Return a log as a file."""
    return LogFile(io.BytesIO(log)) if isinstance(log, bytes) else log
