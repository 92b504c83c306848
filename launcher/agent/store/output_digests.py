"""The SHA-256 of a run's outputs, kept in its record so that the next scan need not read them again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import Any, Callable, Dict, List

from ..record import strict_json
from ..record.files import read_json, write_durably
from ..record.rundir import Run

PIECE = 1 << 20
WORTH_KEEPING = 1 << 16
"""In bytes. A smaller file is read as fast as its digest is looked up, and there may be many."""
SETTLED_NS = 2_000_000_000
"""A file that changes twice within a clock tick of its file system looks unchanged: too young to trust."""


def mark_of(status: os.stat_result) -> List[int]:
    """Return the values that change with a file: size, times of contents and of status, inode."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


class OutputDigests:
    """The digests of one run's files by path, each valid while the file's mark is the same."""

    def __init__(self, run: Run, advance: Callable[[int], None] = lambda _count: None) -> None:
        """Load the digests. `advance` gets the number of bytes of each piece that is read."""
        self._file = run.digests
        self._kept: Dict[str, Any] = read_json(self._file)
        self._advance = advance
        self._has_news = False

    def known(self, path: str, mark: List[int]) -> str | None:
        """Return the digest of a file with this mark, None if it must be read."""
        entry = self._kept.get(path)
        return str(entry[-1]) if isinstance(entry, list) and entry[:-1] == mark else None

    def of(self, path: str, descriptor: int) -> str:
        """Return the digest of an open file, reading the file only if needed. Raises OSError."""
        return self.known(path, mark_of(os.fstat(descriptor))) or self.read(path, descriptor)

    def read(self, path: str, descriptor: int) -> str:
        """Return the digest of an open file as it is now; keep it if the file is settled. Raises OSError."""
        mark = mark_of(os.fstat(descriptor))
        digest, left = hashlib.sha256(), mark[0]
        while left:
            piece = os.read(descriptor, min(left, PIECE))
            if not piece:
                break
            left -= len(piece)
            digest.update(piece)
            self._advance(len(piece))
        is_settled = mark_of(os.fstat(descriptor)) == mark and time.time_ns() - max(mark[1:3]) > SETTLED_NS
        if is_settled and mark[0] >= WORTH_KEEPING:
            self._kept[path] = [*mark, digest.hexdigest()]
            self._has_news = True
        return digest.hexdigest()

    def save(self) -> None:
        """Save the new digests. If the disk refuses, only time is lost."""
        if self._has_news:
            self._has_news = False
            with contextlib.suppress(OSError):
                write_durably(self._file, strict_json.encode(self._kept), 0o600)
