"""The record of a run's upload: each path with its content, and the local source of that content.

It is stored beside the local copy. With it, the same code and data can be sent to another host and verified
there, even while the first host does not answer.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from launcher.base.client_files import open_regular, opened_folder, parent_of
from launcher.base.json_file import MAX_BYTES
from launcher.copy.local_copy import LocalCopy
from launcher.copy.run_files import RunFiles
from launcher.upload.tree import CodeTree, SizedFile

NAME = "sent.json.gz"
KEPT = ".sent"
"""The folder beside the record for sent files whose original was deleted; their names are their SHA-256."""
Manifest = dict[str, dict[str, str | int]]
_SHA256 = re.compile("[0-9a-f]{64}")
_PARTS = TypeAdapter(tuple[Manifest, dict[str, str]], config=ConfigDict(defer_build=True))


class UploadRecord(NamedTuple):
    """The manifest that a host received, and the local file with each content, by the content's SHA-256."""

    manifest: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, str]

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each content by its SHA-256."""
        return {str(one["sha256"]): int(one["size"]) for one in self.manifest.values() if "sha256" in one}


class Found(NamedTuple):
    """Local files that are unchanged since the upload, by their SHA-256, and the paths of the others."""

    files: dict[str, SizedFile]
    changed: list[str]


def sent(collected: CodeTree, manifest: Mapping[str, Mapping[str, Any]]) -> UploadRecord:
    """Return the record of a tree that was sent with this manifest."""
    sources = {
        str(manifest[entry.path]["sha256"]): os.path.abspath(entry.source)
        for entry in collected.entries
        if entry.is_file
    }
    return UploadRecord(manifest, sources)


def write(local_copy: LocalCopy, record: UploadRecord) -> None:
    """Store the record beside a local copy. Raises OSError."""
    text = json.dumps([record.manifest, record.sources], separators=(",", ":"))
    local_copy.records.write(NAME, gzip.compress(text.encode(), compresslevel=1, mtime=0))


def read(local_copy: LocalCopy) -> UploadRecord | None:
    """Return the record of a run's upload, or None if this client has none."""
    try:
        with local_copy.records.open(NAME, most=MAX_BYTES) as packed, gzip.open(packed) as file:
            data = file.read(MAX_BYTES)  # a longer text is cut off and is then invalid JSON
        return UploadRecord(*_PARTS.validate_json(data, strict=True))
    except (OSError, EOFError, zlib.error, ValidationError):
        return None


def keep(local_copy: LocalCopy, folder: Path) -> int:
    """Save a run's sent files from a folder about to be deleted, beside its local copy. Return their number.

    Raises OSError.
    """
    record = read(local_copy)
    if record is None:
        return 0
    top = RunFiles(Path(os.path.abspath(folder)), local_copy.folder.parent)
    kept = {
        sha256: Path(path)
        for sha256, path in record.sources.items()
        if os.path.isabs(path) and top.is_file(Path(path)) and _SHA256.fullmatch(sha256)
    }
    if kept:
        local_copy.files.make_folder(KEPT)
    for sha256, path in kept.items():
        _link(top, path, local_copy.files, f"{KEPT}/{sha256}")
    if kept:
        places = {sha256: str(local_copy.folder / KEPT / sha256) for sha256 in kept}
        write(local_copy, UploadRecord(record.manifest, {**record.sources, **places}))
    return len(kept)


def _link(source: RunFiles, path: Path, files: RunFiles, place: str) -> None:
    """Hard-link a file to another name; copy it if that is not possible. Raises OSError."""
    files.remove(place)
    try:
        with opened_folder(parent_of(source.at(path))) as here, opened_folder(files.at(KEPT)) as there:
            names = path.name, os.path.basename(place)
            os.link(*names, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
    except OSError:
        with source.open(path) as file, files.open(place, "wb") as copy:
            shutil.copyfileobj(file, copy)


def copy(local_copy: LocalCopy, child: LocalCopy) -> None:
    """Copy a run's record to the run that continues it with the same code and data. Raises OSError."""
    if local_copy.records.is_file(NAME):
        child.records.write(NAME, local_copy.records.read(NAME))
    if local_copy.files.is_folder(KEPT):
        keep(child, local_copy.folder / KEPT)


def find(record: UploadRecord, wanted: Collection[str]) -> Found:
    """Search for contents in the recorded local files, by their SHA-256. Each file is read to verify it."""
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
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False
