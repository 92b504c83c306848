"""The content store: what clients have sent to this host, each content once, and a private copy for each run.

<root>/store/
  lock            held shared while a tree is shipped, exclusively by `gc`
  files/ab/...    files by their SHA-256, read-only
  data/<digest>/  models and data that clients have sent, as whole trees; shared by runs with the same content
  spare/<digest>/ a copy of a code tree, made in advance: the next run with the same code takes it
  incoming/NAME/  one upload; NAME.lock is held by the agent that receives it

A run's code is its own copy, which the run may change. The copy never shares a file with the store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from typing import Any, Callable, Dict, Iterator, Mapping

from ..record import strict_json
from ..record.files import paths_in, read_json, remove_folder, sync_folder, write_durably
from ..record.locks import Lock
from ..record.rundir import Run
from .manifest import FileTree, Manifest, ShippingError, code_of, data_of, mode_of, shared_mode_of

CHUNK = 1 << 18
SMALL = 1 << 20
MOST_SPARES = 3
MOST_SPARE_BYTES = 1 << 30
HOLDERS_S = 30.0
STATS = "stats.json"
PARTS = ("part-", "taken-", "spoilt-")
_FICLONE = 0x40049409


def main(arguments: list[str]) -> int:
    """Make a spare copy of a run's code at the lowest priority; return 0."""
    run = Run(os.path.abspath(arguments[0]))
    os.nice(19)
    store = Store(os.path.dirname(os.path.dirname(run.path)))
    with store.shared():
        store.make_spare(run)
    return 0


class Store:
    """The store below a root folder. Its files are stable only while `shared` or `alone` is held."""

    def __init__(self, root: str) -> None:
        """Name the paths without creating them."""
        self.path = os.path.join(root, "store")
        self._files = os.path.join(self.path, "files")
        self._data = os.path.join(self.path, "data")
        self._spare = os.path.join(self.path, "spare")
        self._incoming = os.path.join(self.path, "incoming")

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Keep `gc` out while a tree is offered, received and placed. Raises ShippingError if `gc` is running."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        lock = Lock.take(os.path.join(self.path, "lock"), HOLDERS_S, shared=True)
        if lock is None:
            raise ShippingError("`launch gc` is running on this host; try again")
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the store exclusively, for `gc`. Raises ShippingError while a client is shipping."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        lock = Lock.take(os.path.join(self.path, "lock"))
        if lock is None:
            raise ShippingError("a client is sending files to this host; try again")
        try:
            yield
        finally:
            lock.release()

    def unnamed(self, manifests: list[Manifest]) -> Iterator[tuple[str, str]]:
        """Yield (kind, path) of everything that none of the manifests names. Call it while `alone` is held."""
        codes = [code_of(manifest) for manifest in manifests]
        files = {entry["sha256"] for code in codes for entry in code.values() if "sha256" in entry}
        trees = {tree.digest for manifest in manifests for tree in data_of(manifest).values()}
        spares = {code.digest for code in codes}
        for folder in paths_in(self._files):
            for path in paths_in(folder):
                if os.path.basename(path) not in files:
                    yield "file", path
        for kind, folder, named in (("data", self._data, trees), ("spare copy", self._spare, spares)):
            for path in paths_in(folder):
                if os.path.basename(path) not in named:
                    yield kind, path
        for path in paths_in(self._incoming):  # its sender no longer holds the store
            yield "broken upload", path

    def torn(self) -> Iterator[tuple[str, str]]:
        """Yield (kind, path) of interrupted work: uploads, and copies that never got their final name."""
        for path in paths_in(self._incoming):
            if os.path.isdir(path):
                yield "broken upload", path
        for folder in (self._data, self._spare):
            for path in paths_in(folder):
                if os.path.basename(path).startswith(PARTS):
                    yield "half-made copy", path

    def remove_upload(self, path: str) -> bool:
        """Remove an upload unless an agent is still receiving it; return whether it is gone."""
        lock = Lock.take(path + ".lock", 0.0)
        if lock is not None:
            self._remove_upload(path)
            lock.release()
        return not os.path.lexists(path)

    # contents

    def file(self, sha256: str) -> str:
        """Return the path of the file with this content, which may be missing."""
        return os.path.join(self._files, sha256[:2], sha256)

    def missing(self, manifest: Manifest) -> list[str]:
        """Return the SHA-256 of each file that a client must send before `place` can succeed."""
        return self._missing(code_of(manifest), data_of(manifest))

    def _missing(self, code: FileTree, data: Dict[str, FileTree]) -> list[str]:
        needed: Manifest = {}
        if not os.path.isdir(self._spare_of(code)):
            needed.update(code)
        for entries in data.values():
            if not self._has_data(entries):
                needed.update(entries)
        files = {entry["sha256"]: entry for entry in needed.values() if "sha256" in entry}
        return sorted(sha256 for sha256, entry in files.items() if not self._holds(sha256, entry))

    def _holds(self, sha256: str, entry: dict[str, Any]) -> bool:
        try:
            return os.stat(self.file(sha256)).st_size == entry.get("size")
        except OSError:
            return False

    # receiving

    def receive(
        self, stream: Any, files: list[tuple[str, int]], modes: Mapping[str, int] | None = None
    ) -> None:
        """Read files, given as (SHA-256, size in bytes), one after another from a stream; keep each once it is whole.

        `modes` are the modes in which data trees will share the files, by SHA-256; a mode never changes afterwards. Raises ShippingError if a file has other contents. Files that arrived before a stream broke are kept.
        """
        os.makedirs(self._incoming, mode=0o700, exist_ok=True)
        self._sweep_incoming()
        folder = os.path.join(self._incoming, os.urandom(8).hex())
        lock = Lock.take(folder + ".lock")
        try:
            os.mkdir(folder)
            for sha256, size in files:
                self._take(
                    stream, sha256, size, os.path.join(folder, "file"), (modes or {}).get(sha256, 0o444)
                )
        finally:
            self._remove_upload(folder)
            if lock is not None:
                lock.release()

    def _remove_upload(self, folder: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder + ".lock")

    def _take(self, stream: Any, sha256: str, size: int, part: str, mode: int) -> None:
        digest = hashlib.sha256()
        with open(part, "wb") as file:
            while size:
                piece = stream.read(min(size, CHUNK))
                if not piece:
                    raise ShippingError("the stream of files ended early")
                size -= len(piece)
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != sha256:
            raise ShippingError("a file changed while it was being sent; launch again")
        os.chmod(part, mode)
        target = self.file(sha256)
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        os.replace(part, target)

    def _sweep_incoming(self) -> None:
        """Remove uploads whose agent has died, which leaves their lock free."""
        for name in os.listdir(self._incoming):
            folder = os.path.join(self._incoming, name)
            if os.path.isdir(folder):
                self.remove_upload(folder)

    # placing

    def place(self, manifest: Manifest, run: Run) -> list[str]:
        """Give a run its own copy of its code, and its data. Return the missing files; if any are, nothing is placed.

        The SHA-256 of each file of the code is checked while it is copied; a corrupt file counts as missing.
        """
        code, data = code_of(manifest), data_of(manifest)
        missing = self._missing(code, data)
        if missing:
            return missing
        remove_folder(run.incoming)
        os.makedirs(run.incoming)
        try:
            part = os.path.join(run.incoming, "code")
            if not self._take_spare(code, part):
                missing += self._fill(code, part, _copy)
            data_part = os.path.join(run.incoming, "data")
            os.mkdir(data_part)
            for key, entries in data.items():
                missing += self._place_data(entries, os.path.join(data_part, key))
            if not missing:
                write_durably(run.manifest, strict_json.encode(manifest))
                os.replace(data_part, run.data)
                os.replace(part, run.code)  # last: a run without code has not begun
                sync_folder(run.work)
        finally:
            remove_folder(run.incoming)
        return missing

    def _fill(
        self, entries: Manifest, folder: str, put: Callable[[str, str, dict[str, Any]], bool]
    ) -> list[str]:
        """Make a tree from files of the store, links last; return the missing and the corrupt files."""
        corrupt = []
        made = set()
        os.makedirs(folder)
        real = os.path.realpath(folder)
        for path, entry in sorted(entries.items(), key=lambda item: "link" in item[1]):
            target = os.path.join(folder, path)
            parent = os.path.dirname(target)
            if parent not in made:
                os.makedirs(parent, exist_ok=True)
                made.add(parent)
            if "link" in entry:
                os.symlink(entry["link"], target)
            elif "folder" in entry:
                os.mkdir(target)
                os.chmod(target, entry["folder"])
            elif not put(self.file(entry["sha256"]), target, entry):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.file(entry["sha256"]))
                corrupt.append(entry["sha256"])
        for path, entry in entries.items():
            resolved = os.path.realpath(os.path.join(folder, path)) if "link" in entry else real
            if resolved != real and not resolved.startswith(real + os.sep):  # through other links
                raise ShippingError("%r: a link out of the tree" % path)
        return corrupt

    # data

    def _data_of(self, entries: FileTree) -> str:
        return os.path.join(self._data, entries.digest)

    def _has_data(self, entries: FileTree) -> bool:
        """Return whether a tree is present and complete, with no file changed since."""
        return _is_unchanged(self._data_of(entries))

    def _place_data(self, entries: FileTree, link: str) -> list[str]:
        folder = self._data_of(entries)
        missing = [] if self._has_data(entries) else self._make_data(entries, folder)
        if missing and not self._has_data(entries):  # else another client has just made it from these files
            return missing
        os.symlink(os.path.join(folder, "tree"), link)
        return []

    def _make_data(self, entries: FileTree, folder: str) -> list[str]:
        """Make a durable, read-only data tree from files of the store; return the missing and the corrupt files."""
        os.makedirs(self._data, mode=0o700, exist_ok=True)
        part = tempfile.mkdtemp(prefix="part-", dir=self._data)
        try:
            corrupt = self._fill(entries, os.path.join(part, "tree"), _adopt)
            if corrupt:
                return corrupt
            _write_stats(part, entries)
            # A tree that was changed: its readers keep their open files, new readers get the new tree.
            if os.path.isdir(folder):
                os.rename(folder, tempfile.mkdtemp(prefix="spoilt-", dir=self._data))
            try:
                os.rename(part, folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
        finally:
            remove_folder(part)
        return []

    # spares

    def _spare_of(self, entries: FileTree) -> str:
        return os.path.join(self._spare, entries.digest)

    def _take_spare(self, entries: FileTree, target: str) -> bool:
        """Move a spare copy of exactly this tree to a run; return False without an unchanged one."""
        folder = self._spare_of(entries)
        taken = tempfile.mkdtemp(prefix="taken-", dir=self._spare) if os.path.isdir(folder) else None
        if taken is None:
            return False
        try:
            os.rename(folder, taken)  # a second taker finds none
            if not _is_unchanged(taken):
                return False
            os.rename(os.path.join(taken, "tree"), target)
        except OSError:
            return False
        finally:
            remove_folder(taken)
        return True

    def make_spare(self, run: Run) -> bool:
        """Copy a run's code as it was sent, for the next run of the same code; return whether a spare exists now."""
        entries = code_of(read_json(run.manifest))
        folder = self._spare_of(entries)
        size = sum(entry.get("size", 0) for entry in entries.values())
        if os.path.isdir(folder) or not entries or size > MOST_SPARE_BYTES:
            return os.path.isdir(folder)
        os.makedirs(self._spare, mode=0o700, exist_ok=True)
        part = tempfile.mkdtemp(prefix="part-", dir=self._spare)
        try:
            if self._fill(entries, os.path.join(part, "tree"), _copy):
                return False
            _write_stats(part, entries)
            os.rename(part, folder)
        finally:
            remove_folder(part)
        self._drop_old_spares()
        return True

    def _drop_old_spares(self) -> None:
        by_age = sorted(
            (os.stat(path).st_mtime, path)
            for path in (os.path.join(self._spare, name) for name in os.listdir(self._spare))
        )
        for _, path in by_age[:-MOST_SPARES]:
            remove_folder(path)


def _copy(source: str, target: str, entry: dict[str, Any]) -> bool:
    """Copy a file of the store, checking its SHA-256; return False if it is missing or corrupt."""
    digest = hashlib.sha256()
    try:
        reading = os.open(source, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            is_cloned = entry["size"] > SMALL and _clone(reading, writing)
            for piece in iter(lambda: os.read(reading, SMALL), b""):
                digest.update(piece)
                view = memoryview(b"" if is_cloned else piece)
                while view:
                    view = view[os.write(writing, view) :]
            os.fchmod(writing, mode_of(entry))
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    return bool(digest.hexdigest() == entry["sha256"])


def _clone(reading: int, writing: int) -> bool:
    """Share the blocks of the original until one of the two is written to. Return False unless on btrfs or xfs."""
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError:
        return False
    return True


def _adopt(source: str, target: str, entry: dict[str, Any]) -> bool:
    """Link a file of the store into a tree durably, checking its SHA-256; return False if it is missing or corrupt.

    A link has the mode of its file, which other trees share: a tree that wants another mode gets a copy.
    """
    digest = hashlib.sha256()
    try:
        with open(source, "rb") as file:
            for piece in iter(lambda: file.read(SMALL), b""):
                digest.update(piece)
            if digest.hexdigest() != entry["sha256"]:
                return False
            os.fsync(file.fileno())
    except FileNotFoundError:
        return False
    mode = shared_mode_of(entry)
    if stat.S_IMODE(os.stat(source).st_mode) == mode:
        with contextlib.suppress(OSError):  # a file system without hard links
            os.link(source, target)  # the same inode: it takes no space
            return True
    return _copy(source, target, {**entry, "mode": mode})


def _write_stats(folder: str, entries: Manifest) -> None:
    """Record size and time of each file of a finished tree, so that a later change is noticed."""
    stats = {}
    for path, entry in entries.items():
        if "sha256" in entry:
            status = os.stat(os.path.join(folder, "tree", path))
            stats[path] = [status.st_size, status.st_mtime_ns]
    write_durably(os.path.join(folder, STATS), strict_json.encode(stats))


def _is_unchanged(folder: str) -> bool:
    """Return whether a tree is finished and every file still has its recorded size and time."""
    if not os.path.exists(os.path.join(folder, STATS)):
        return False
    try:
        for path, (size, mtime_ns) in read_json(os.path.join(folder, STATS)).items():
            status = os.stat(os.path.join(folder, "tree", path))
            if status.st_size != size or status.st_mtime_ns != mtime_ns:
                return False
    except OSError:
        return False
    return True
