"""A cache of file digests, valid while size, times and inode are unchanged, so that files are read only once.

It holds the SHA-256 of each file, and whether it is a private key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

from platformdirs.unix import Unix

from launcher.base.client_files import open_regular
from launcher.base.json_file import read_json
from launcher.base.whole_file import write_whole
from launcher.upload.default_exclusions import SAMPLE, holds_private_key, sample

FIELDS = 6
"""The number of fields of a file: size, two times and inode as read, whether it is a private key, SHA-256."""
RULES = 3
"""The version of the rules for private keys.

Increase it when the rules change, so that files are checked again.
"""
_RULES_KEY = ""  # differs from every path
PIECE = 1 << 18
LATELY_S = 1.0
"""For this many seconds after the start of a walk, the walk's reading of a file's status is still used.

A user hardly changes a file so soon.
"""
SETTLED_NS = 2_000_000_000  # a younger file is read again: two changes within a clock tick look like one


class Known(NamedTuple):
    """The cached results for a file."""

    sha256: str
    is_private_key: bool


class Looked(NamedTuple):
    """The manifest's data about a file: its SHA-256, its size in bytes and its permission bits."""

    sha256: str | None
    size: int
    mode: int


class Digests:
    """The digests of one folder's files, stored in ~/.cache/launch between launches."""

    def __init__(self, folder: Path) -> None:
        """Load the digests of a folder. An unreadable cache file is ignored."""
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        self._file = Unix("launch").user_cache_path / "digests" / f"{name}.json"
        self._known = read_json(self._file)
        if self._known.pop(_RULES_KEY, None) != RULES:
            self._known = {}
        self._seen: dict[str, list[Any]] = {}
        self._young: dict[str, tuple[list[int], Known]] = {}
        self._modes: dict[str, int] = {}
        self._judged: dict[str, tuple[list[int], bool]] = {}
        self._has_news = False
        self._now_ns = time.time_ns()
        self._began = time.monotonic()

    def known(self, path: str, status: os.stat_result) -> Known | None:
        """Return the results for a file with this status. None if it has changed since, or was never read."""
        known = self._seen.get(path) or self._known.get(path)
        if isinstance(known, list) and len(known) == FIELDS and _is_of(known, status):
            self._seen[path] = known
            self._modes[path] = status.st_mode & 0o777
            return Known(known[-1], known[-2])
        young = self._young.get(path)
        return young[1] if young is not None and young[0] == _look(status) else None

    def lately(self, path: str) -> Looked | None:
        """Return the data about a file that was checked within LATELY_S, else None."""
        mode = self._modes.get(path)
        if mode is None or time.monotonic() - self._began > LATELY_S:
            return None
        return Looked(self._seen[path][-1], self._seen[path][0], mode)

    def look_again(self) -> None:
        """Forget the recent checks of files, after a file has changed."""
        self._modes.clear()

    def read(self, path: str, advance: Callable[[int], None]) -> tuple[Known, os.stat_result]:
        """Read a file up to the size that it has at the start: a log may grow for ever.

        Return its results and its status. `advance` gets the bytes of each piece. Raises OSError.
        """
        hashing, start = hashlib.sha256(), b""
        with open(open_regular(path, os.O_RDONLY), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            left = status.st_size
            while left and (piece := file.read(min(PIECE, left))):
                left -= len(piece)
                start = start or piece
                hashing.update(piece)
                advance(len(piece))
            is_key = self._judge(path, file, status) if status.st_size > SAMPLE else holds_private_key(start)
        known = Known(hashing.hexdigest(), is_key)
        if self._now_ns - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_NS:
            self._seen[path] = [*_look(status), is_key, known.sha256]
            self._modes[path] = status.st_mode & 0o777
            self._has_news = True
        else:
            self._young[path] = (_look(status), known)
        return known, status

    def is_private_key(self, path: str, status: os.stat_result) -> bool:
        """Return whether a file is a private key. Only a changed file is read, a large one in part.

        False for an unreadable file.
        """
        if (known := self.known(path, status)) is not None:
            return known.is_private_key
        try:
            if status.st_size <= SAMPLE:
                return self.read(path, lambda _: None)[0].is_private_key
            with open(open_regular(path, os.O_RDONLY), "rb", buffering=0) as file:
                return self._judge(path, file, status)
        except OSError:
            return False

    def _judge(self, path: str, file: IO[bytes], status: os.stat_result) -> bool:
        """Return whether a large file is a private key.

        The result is kept between the walk and the hashing.
        """
        judged = self._judged.get(path)
        if judged is None or judged[0] != _look(status):
            judged = self._judged[path] = _look(status), holds_private_key(sample(file, status.st_size))
        return judged[1]

    def save(self) -> None:
        """Save the digests that were requested and drop the others. A failed write costs only time."""
        if not self._has_news and len(self._seen) == len(self._known):
            return
        self._has_news = False
        with contextlib.suppress(OSError):
            write_whole(self._file, json.dumps({_RULES_KEY: RULES, **self._seen}).encode())


def _is_of(known: list[int], status: os.stat_result) -> bool:
    """Whether a file still has this status. Like `_look`, without two lists per file."""
    return (
        known[0] == status.st_size
        and known[1] == status.st_mtime_ns
        and known[2] == status.st_ctime_ns
        and known[3] == status.st_ino
    )


def _look(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
