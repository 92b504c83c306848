"""What was sent for a run: each path with its content, and where that content lay here.

It is kept beside the run's mirror. So the same code and data can be sent to another host while the first one does not
answer, and are known to be the same.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from launcher.runs.mirror import Mirror
from launcher.runs.tree import CodeTree, SizedFile
from launcher.runs.whole_file import write_whole

NAME = "sent.json.gz"
KEPT = ".sent"
"""Beside the record: files that lie nowhere else here any more, by their SHA-256."""
Manifest = dict[str, dict[str, str | int]]
_PARTS = TypeAdapter(tuple[Manifest, dict[str, str]], config=ConfigDict(defer_build=True))


class Sent(NamedTuple):
    """The manifest that a host got, and a file here for each content, by its SHA-256."""

    manifest: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, str]

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each content by its SHA-256."""
        return {str(one["sha256"]): int(one["size"]) for one in self.manifest.values() if "sha256" in one}


class Found(NamedTuple):
    """Files here that are as they were sent, by their SHA-256, and the paths of those that are not."""

    files: dict[str, SizedFile]
    changed: list[str]


def sent(collected: CodeTree, manifest: Mapping[str, Mapping[str, Any]]) -> Sent:
    """Return what is on record of a tree that was sent with this manifest."""
    sources = {
        str(manifest[entry.path]["sha256"]): os.path.abspath(entry.source)
        for entry in collected.entries
        if entry.is_file
    }
    return Sent(manifest, sources)


def write(mirror: Mirror, record: Sent) -> None:
    """Keep the record beside a mirror. Raises OSError."""
    text = json.dumps([record.manifest, record.sources], separators=(",", ":"))
    write_whole(mirror.folder / NAME, gzip.compress(text.encode(), compresslevel=1, mtime=0))


def read(mirror: Mirror) -> Sent | None:
    """Return what was sent for a run; None if this client has no such record."""
    try:
        return Sent(*_PARTS.validate_json(gzip.decompress((mirror.folder / NAME).read_bytes()), strict=True))
    except (OSError, EOFError, zlib.error, ValidationError):
        return None


def keep(mirror: Mirror, folder: Path) -> int:
    """Put what was sent for a run, and lies below a folder that is about to go, beside its mirror; return how many files. Raises OSError."""
    record = read(mirror)
    if record is None:
        return 0
    top = os.path.abspath(folder)
    kept = {
        sha256: path
        for sha256, path in record.sources.items()
        if Path(path).is_relative_to(top) and os.path.isfile(path)
    }
    place = mirror.folder / KEPT
    if kept:
        place.mkdir(exist_ok=True)
    for sha256, path in kept.items():
        _link(path, place / sha256)
    if kept:
        sources = {**record.sources, **{sha256: str(place / sha256) for sha256 in kept}}
        write(mirror, Sent(record.manifest, sources))
    return len(kept)


def _link(path: str, place: Path) -> None:
    place.unlink(missing_ok=True)
    try:
        os.link(path, place)
    except OSError:  # a file system without links
        shutil.copyfile(path, place)


def copy(mirror: Mirror, child: Mirror) -> None:
    """Give a run the record of the one that it continues with the same code and data. Raises OSError."""
    path = mirror.folder / NAME
    if path.is_file():
        write_whole(child.folder / NAME, path.read_bytes())
    if (mirror.folder / KEPT).is_dir():
        keep(child, mirror.folder / KEPT)


def find(record: Sent, wanted: Collection[str]) -> Found:
    """Look here for contents, by their SHA-256. Each file is read."""
    paths = {str(entry["sha256"]): path for path, entry in record.manifest.items() if "sha256" in entry}
    sizes = record.sizes
    files: dict[str, SizedFile] = {}
    changed = []
    for sha256 in wanted:
        name, source = paths[sha256], record.sources.get(sha256, "")
        if _is_as_sent(source, sizes[sha256], sha256):
            files[sha256] = SizedFile(name.removeprefix("code/"), source, sizes[sha256])
        else:
            changed.append(name.removeprefix("code/"))
    return Found(files, sorted(changed))


def _is_as_sent(path: str, size: int, sha256: str) -> bool:
    try:
        if os.stat(path).st_size != size:
            return False
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False
