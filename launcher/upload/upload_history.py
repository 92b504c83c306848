"""The contents that a folder has already sent to a host, so that only large new uploads need a confirmation."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from platformdirs.unix import Unix
from rich.filesize import decimal

from launcher.base.json_file import read_json
from launcher.base.text import files_text
from launcher.base.whole_file import write_whole
from launcher.upload.loading import Load
from launcher.upload.tree import PathRecord
from launcher.values.host import Host
from launcher.values.plan import Finding
from launcher.values.upload_selection import UploadSelection

MAX_BYTES = 200_000_000
MAX_FILES = 20_000
KEPT_S = 90 * 86_400
"""The age in seconds at which a content that was not sent again is forgotten."""
MAX_NAMED = 3
WORTH_NAMING = 1_000_000
_DIGITS = 16
"""The number of digits of a SHA-256 that are stored. A collision would only skip a question to the user."""


class _New(NamedTuple):
    """The files new to the host: their number, their bytes, and the largest ones with their sizes."""

    files: int
    bytes: int
    largest: list[tuple[str, int]]


def is_large(what: UploadSelection | _New) -> bool:
    """Return whether the upload is so large that the user must confirm it."""
    return what.bytes > MAX_BYTES or what.files > MAX_FILES


class UploadHistory:
    """The contents that a host has received from a folder, stored in ~/.cache/launch."""

    def __init__(self, code: Path, host: Host) -> None:
        """Find the file of the history. An unreadable file counts as empty."""
        name = hashlib.sha256(os.fsencode(f"{code}\0{host.name}\0{host.address}\0{host.root}")).hexdigest()[
            :32
        ]
        self._file = Unix("launch").user_cache_path / "shipped" / f"{name}.json"
        self._host = host.name

    def question(self, load: Load) -> Finding | None:
        """Return a finding if a large part of the upload is new to the host, or None."""
        if not is_large(load.selection):
            return None
        new = self._new(load)
        if not is_large(new):
            return None
        words = (
            f"{files_text(new.files)}, {decimal(new.bytes)}, would be sent to {self._host} for the first time"
        )
        lines = [
            words,
            *(f"{decimal(size):>9}  {path}" for path, size in new.largest if size >= WORTH_NAMING),
        ]
        mend = "launch --yes … sends them, like the answer y at a terminal; a .launchignore leaves files out"
        return Finding(level="refuse", code="large-cargo", message="\n  ".join(lines), mend=mend)

    def _new(self, load: Load) -> _New:
        """Return the files that are new to the host.

        A file without a known digest is read, unless this folder has sent nothing to the host yet.
        """
        known, sources = read_json(self._file), set()
        new: list[tuple[str, int]] = []
        for entry in load.tree.entries:
            if not entry.is_file or entry.source in sources:
                continue
            sources.add(entry.source)
            with contextlib.suppress(OSError):  # if a file has vanished, its later reading reports it
                found = load.digests.known(entry.source, os.stat(entry.source))
                if found is None and known:  # the file is too recent for a stored digest, or has changed
                    found, _ = load.digests.read(entry.source, lambda _count: None)
                if found is None or found.sha256[:_DIGITS] not in known:
                    new.append((entry.name, entry.size))
        largest = sorted(new, key=lambda pair: (-pair[1], pair[0]))[:MAX_NAMED]
        return _New(len(new), sum(size for _, size in new), largest)

    def record(self, entries: Iterable[PathRecord]) -> None:
        """Record entries of a manifest as received by the host.

        If the write fails, the user is only asked again.
        """
        now = int(time.time())
        kept = {
            digest: at
            for digest, at in read_json(self._file).items()
            if isinstance(at, int) and now - at < KEPT_S
        }
        kept.update({entry["sha256"][:_DIGITS]: now for entry in entries if "sha256" in entry})
        with contextlib.suppress(OSError):
            write_whole(self._file, json.dumps(kept).encode())
