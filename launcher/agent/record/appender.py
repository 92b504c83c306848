"""An append-only file on a disk that may be full."""

from __future__ import annotations

import os

from .files import REFUSED
from .safe_open import APPENDING, open_regular

MAX_PENDING = 64 * 1024 * 1024


class Appender:
    """An append-only file that survives a full disk: data that does not fit waits in memory.

    Beyond MAX_PENDING bytes new data is dropped, and the file says how much.
    """

    def __init__(self, path: str) -> None:
        """Open the file, created if missing."""
        self._path = path
        self._descriptor = open_regular(path, APPENDING)
        self._waiting = bytearray()
        self._dropped = 0
        self.refused: str | None = None
        """The reason why the disk refused the last write, a name in REFUSED; None if the write succeeded."""

    def append(self, data: bytes) -> None:
        """Append bytes, or keep them for the next try."""
        if len(self._waiting) + len(data) > MAX_PENDING:
            self._dropped += len(data)
            return
        self._waiting += data
        self.flush()

    def flush(self) -> bool:
        """Write the waiting data; return whether all of it is written."""
        try:
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, self._waiting[: 1 << 20])]
        except OSError as error:
            if error.errno not in REFUSED:
                raise
            self.refused = REFUSED[error.errno]
            return False
        self.refused = None
        if self._dropped:
            line = "\n[launch: %d bytes were dropped here: the disk was full]\n" % self._dropped
            self._dropped = 0
            self.append(line.encode())
        return not self._waiting

    def tail(self, size: int) -> bytes:
        """Return the last `size` bytes, including those that wait for room."""
        with open(open_regular(self._path, os.O_RDONLY), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return (file.read() + bytes(self._waiting))[-size:]

    def sync(self) -> None:
        """Make the written data durable."""
        os.fsync(self._descriptor)
