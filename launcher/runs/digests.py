"""A cache of SHA-256 digests of files, valid while size, times and inode are unchanged: unchanged files are not read again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from platformdirs.unix import Unix

from launcher.runs.json_file import read_json
from launcher.runs.whole_file import write_whole

PIECE = 1 << 18
SETTLED_NS = 2_000_000_000  # a file changed twice within its file system's clock tick looks the same: too young to trust


class Digests:
    """The digests of one folder's files, kept in ~/.cache/launch between launches."""

    def __init__(self, folder: Path) -> None:
        """Load the digests of a folder. A cache file that cannot be read is ignored."""
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        self._file = Unix("launch").user_cache_path / "digests" / f"{name}.json"
        self._known = read_json(self._file)
        self._seen: dict[str, list[Any]] = {}
        self._has_news = False
        self._now_ns = time.time_ns()

    def known(self, path: str) -> tuple[str | None, os.stat_result]:
        """Return the SHA-256 of a file that is as it was when it was read last, else None; and its status. Raises OSError."""
        status = os.stat(path)
        known = self._known.get(path)
        if isinstance(known, list) and known[:-1] == _look(status):
            self._seen[path] = known
            return str(known[-1]), status
        return None, status

    def read(self, path: str, advance: Callable[[int], None]) -> tuple[str, os.stat_result]:
        """Read a file and return its SHA-256 and its status; `advance` gets the bytes of each piece. Raises OSError."""
        hashing = hashlib.sha256()
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            while piece := file.read(PIECE):
                hashing.update(piece)
                advance(len(piece))
        digest = hashing.hexdigest()
        if self._now_ns - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_NS:
            self._seen[path] = [*_look(status), digest]
            self._has_news = True
        return digest, status

    def save(self) -> None:
        """Save the digests that were requested and drop the others. A failing disk costs only time."""
        if not self._has_news and len(self._seen) == len(self._known):
            return
        with contextlib.suppress(OSError):
            write_whole(self._file, json.dumps(self._seen).encode())


def _look(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
