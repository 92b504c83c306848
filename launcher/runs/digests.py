"""A cache of what was found in files, valid while size, times and inode are unchanged: unchanged files are not read again.

It holds the SHA-256 of each file, and whether a small one is a private key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from platformdirs.unix import Unix

from launcher.client_files import open_regular
from launcher.runs.default_exclusions import MOST_KEY_BYTES, holds_private_key
from launcher.runs.json_file import read_json
from launcher.runs.whole_file import write_whole

FIELDS = 6
"""Size, two times and inode of a file as it was read, whether it is a private key, and its SHA-256."""
PIECE = 1 << 18
LATELY_S = 1.0
"""For how long after a walk has begun its look at a file counts: nobody launches and changes a file in the same second."""
SETTLED_NS = 2_000_000_000  # a file changed twice within its file system's clock tick looks the same: too young to trust


class Known(NamedTuple):
    """What was found in a file."""

    sha256: str
    is_private_key: bool


class Looked(NamedTuple):
    """What a manifest says of a file: its SHA-256, its size in bytes and its permission bits."""

    sha256: str | None
    size: int
    mode: int


class Digests:
    """The digests of one folder's files, kept in ~/.cache/launch between launches."""

    def __init__(self, folder: Path) -> None:
        """Load the digests of a folder. A cache file that cannot be read is ignored."""
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        self._file = Unix("launch").user_cache_path / "digests" / f"{name}.json"
        self._known = read_json(self._file)
        self._seen: dict[str, list[Any]] = {}
        self._young: dict[str, tuple[list[int], Known]] = {}
        self._modes: dict[str, int] = {}
        self._has_news = False
        self._now_ns = time.time_ns()
        self._began = time.monotonic()

    def known(self, path: str, status: os.stat_result) -> Known | None:
        """Return what is known of a file with this status; None if it has changed since it was read, or was never read."""
        known = self._seen.get(path) or self._known.get(path)
        if isinstance(known, list) and len(known) == FIELDS and _is_of(known, status):
            self._seen[path] = known
            self._modes[path] = status.st_mode & 0o777
            return Known(known[-1], known[-2])
        young = self._young.get(path)
        return young[1] if young is not None and young[0] == _look(status) else None

    def lately(self, path: str) -> Looked | None:
        """Return what was seen of a file within LATELY_S; None of any other file."""
        mode = self._modes.get(path)
        if mode is None or time.monotonic() - self._began > LATELY_S:
            return None
        return Looked(self._seen[path][-1], self._seen[path][0], mode)

    def read(self, path: str, advance: Callable[[int], None]) -> tuple[Known, os.stat_result]:
        """Read a file; return what it holds and its status. `advance` gets the bytes of each piece. Raises OSError."""
        hashing, start = hashlib.sha256(), b""
        with open(open_regular(path, os.O_RDONLY), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            while piece := file.read(PIECE):
                start = start or piece
                hashing.update(piece)
                advance(len(piece))
        is_key = status.st_size < MOST_KEY_BYTES and holds_private_key(start)
        known = Known(hashing.hexdigest(), is_key)
        if self._now_ns - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_NS:
            self._seen[path] = [*_look(status), is_key, known.sha256]
            self._modes[path] = status.st_mode & 0o777
            self._has_news = True
        else:
            self._young[path] = (_look(status), known)
        return known, status

    def is_private_key(self, path: str, status: os.stat_result) -> bool:
        """Return whether a small file is a private key; it is read only if it has changed. What cannot be read is not."""
        known = self.known(path, status)
        if known is None:
            try:
                known, _ = self.read(path, lambda _: None)
            except OSError:
                return False
        return known.is_private_key

    def save(self) -> None:
        """Save the digests that were requested and drop the others. A failing disk costs only time."""
        if not self._has_news and len(self._seen) == len(self._known):
            return
        self._has_news = False
        with contextlib.suppress(OSError):
            write_whole(self._file, json.dumps(self._seen).encode())


def _is_of(known: list[int], status: os.stat_result) -> bool:
    """Whether a file has this status still: as `_look` would say, without two lists for each file."""
    return (
        known[0] == status.st_size
        and known[1] == status.st_mtime_ns
        and known[2] == status.st_ctime_ns
        and known[3] == status.st_ino
    )


def _look(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
