"""Packs what a run works on into one archive, named by its content: code, data, and a checkpoint that it begins with.

The same files always give the same bytes, so that an archive that the service has already is not sent again.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from launcher.remote.record.rundir import Run

FOLDERS = ("code", "data", "checkpoints", "artifacts")
PIECE = 1 << 20
Packing = Callable[[int], None]
"""Gets the number of bytes that were packed so far."""


class Tree(NamedTuple):
    """An archive of a run's tree: a plain tar, its SHA-256 and its size in bytes."""

    path: Path
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """Its name, which says nothing that would make a service unpack it."""
        return f"launch-{self.sha256[:16]}.tree"


def pack_tree(run: Run, target: Path, packed: Packing) -> Tree:
    """Pack the folders of a run's work into a tar; `packed` gets the bytes so far."""
    part = target.with_name(f".{target.name}.{os.getpid()}")
    digest = _Digest(part, packed)
    try:
        with (
            contextlib.closing(digest),
            tarfile.open(fileobj=digest, mode="w|", format=tarfile.GNU_FORMAT) as tar,
        ):
            for name in FOLDERS:
                _add(tar, Path(run.work) / name, name)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return Tree(target, digest.hexdigest(), target.stat().st_size)


def compressed(tree: Tree, target: Path) -> Path:
    """Write an archive's gzip, the same bytes each time."""
    with tree.path.open("rb") as plain, target.open("wb") as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            while piece := plain.read(PIECE):
                packed.write(piece)
    return target


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file, or a folder with what is in it. A link of the tree's own stays one; one into our store is followed."""
    tar.dereference = path.is_symlink() and os.path.isabs(path.readlink())
    if not os.path.lexists(path):
        return
    tar.add(path, name, recursive=False, filter=_plain)
    if path.is_dir() and (tar.dereference or not path.is_symlink()):
        for inner in sorted(os.listdir(path)):
            _add(tar, path / inner, f"{name}/{inner}")


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what differs between machines. Only files, folders and links travel."""
    if not (member.isreg() or member.isdir() or member.issym()):
        return None
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


class _Digest:
    """A file that is hashed while it is written."""

    def __init__(self, path: Path, packed: Packing) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._sha256 = hashlib.sha256()
        self._packed = packed
        self._size = 0

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._sha256.update(data)
        self._size += len(data)
        self._packed(self._size)
        return len(data)

    def close(self) -> None:
        self._file.close()

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()
