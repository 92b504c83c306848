"""Uploads: files on their way from a client into the store, each kept once it is complete."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from typing import Any, Callable, Dict, Mapping, Tuple

from ..record.locks import Lock
from .manifest import ChangedFileError, ShippingError

CHUNK = 1 << 18
WRITTEN_AT_ONCE = 32 << 20
"""After this many bytes the disk begins to write, in parallel with the rest of the upload."""
Look = Tuple[int, int, int, int]
"""A file's inode, size and two times: the file has changed if one of them has."""


class Uploads:
    """The uploads below a folder. Each has a subfolder, whose lock its agent holds."""

    def __init__(self, folder: str, place_of: Callable[[str], str]) -> None:
        """Remember the folder; `place_of` returns a file's final path by its SHA-256."""
        self._folder = folder
        self._place_of = place_of
        self._received: Dict[str, Look] = {}
        """The status of each file that this process received and checked, by SHA-256."""

    def receive(self, stream: Any, files: list[tuple[str, int]], modes: Mapping[str, int]) -> None:
        """Read files from a stream into their final paths. Raises ShippingError; see Store.receive."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._sweep()
        folder = os.path.join(self._folder, os.urandom(8).hex())
        lock = Lock.take(folder + ".lock")
        try:
            os.mkdir(folder)
            part = os.path.join(folder, "file")
            for sha256, size in files:
                _take(stream, sha256, size, part)
                os.chmod(part, modes.get(sha256, 0o444))
                target = self._place_of(sha256)
                os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
                os.replace(part, target)
                self._received[sha256] = _look(target)
        finally:
            _remove(folder)
            if lock is not None:
                lock.release()

    def has_checked(self, sha256: str) -> bool:
        """Whether this process received and checked a file that has not changed since."""
        try:
            return self._received.get(sha256) == _look(self._place_of(sha256))
        except OSError:
            return False

    def remove(self, path: str) -> bool:
        """Remove an upload unless an agent is still receiving it; return whether it is gone."""
        lock = Lock.take(path + ".lock", 0.0)
        if lock is not None:
            _remove(path)
            lock.release()
        return not os.path.lexists(path)

    def _sweep(self) -> None:
        """Remove uploads of dead agents, whose locks are free."""
        for name in os.listdir(self._folder):
            folder = os.path.join(self._folder, name)
            if os.path.isdir(folder):
                self.remove(folder)


def _take(stream: Any, sha256: str, size: int, part: str) -> None:
    digest = hashlib.sha256()
    written = begun = 0
    with open(part, "wb", buffering=0) as file:
        while written < size:
            piece = stream.read(min(size - written, CHUNK))
            if not piece:
                raise ShippingError("the stream of files ended early")
            digest.update(piece)
            view = memoryview(piece)
            while view:
                view = view[file.write(view) :]
            written += len(piece)
            if written - begun >= WRITTEN_AT_ONCE:
                # On this call Linux starts to write the pages to the disk, without blocking. It keeps them in
                # memory, because they are not on the disk yet.
                os.posix_fadvise(file.fileno(), begun, written - begun, os.POSIX_FADV_DONTNEED)
                begun = written
    if digest.hexdigest() != sha256:
        raise ChangedFileError(sha256)


def _look(path: str) -> Look:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder + ".lock")
