"""The content store of a host: it keeps each file that clients sent once, and gives each run a private copy.

<root>/store/
  lock            held shared while a tree is uploaded, exclusively by `gc`
  files/ab/...    files by their SHA-256, read-only
  data/<digest>/  models, data and large files from clients, as whole trees; runs with the same tree share it
  spare/<digest>/ a copy of a code tree, made in advance: the next run with the same code takes it
  incoming/NAME/  one upload; its agent holds NAME.lock

A run has a private copy of its code, which it may change. The copy shares no file with the store, except
through links to large files that the job cannot write to; see tree_files.py.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import tempfile
from typing import Any, Callable, Dict, Iterator, Mapping

from ..liveness import run_state
from ..record import strict_json
from ..record.files import (
    paths_in,
    remove_folder,
    sync_file_system,
    sync_folder,
    sync_tree,
    write_durably,
)
from ..record.locks import Lock
from ..record.rundir import Run
from . import tree_files
from .manifest import (
    FileTree,
    Manifest,
    ManifestEntry,
    ShippingError,
    code_of,
    data_of,
    read_manifest,
)
from .path_patterns import PathPatterns
from .tree_files import NamedContents
from .uploads import Uploads

MAX_SPARES = 3
MAX_SPARE_BYTES = 1 << 30
LOCK_WAIT_S = 30.0
PARTS = ("part-", "taken-", "spoilt-")


class Store:
    """The store below a root folder. Its files are stable only while `shared` or `alone` is held."""

    def __init__(self, root: str) -> None:
        """Derive the paths; make nothing."""
        self.path = os.path.join(root, "store")
        self.lock = os.path.join(self.path, "lock")
        self._files = os.path.join(self.path, "files")
        self._data = os.path.join(self.path, "data")
        self._spare = os.path.join(self.path, "spare")
        self._incoming = os.path.join(self.path, "incoming")
        self.uploads = Uploads(self._incoming, self.file)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Keep `gc` out while a tree is offered, received and placed. Raises ShippingError if `gc` runs."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        lock = Lock.take(self.lock, LOCK_WAIT_S, shared=True)
        if lock is None:
            raise ShippingError("`launch gc` is running on this host; try again")
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the store exclusively, for `gc`. Raises ShippingError while a client is uploading."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        lock = Lock.take(self.lock)
        if lock is None:
            raise ShippingError("a client is sending files to this host; try again")
        try:
            yield
        finally:
            lock.release()

    def unnamed(self, named: NamedContents) -> Iterator[tuple[str, str]]:
        """Yield (kind, path) of everything that no manifest names. Call it while `alone` is held."""
        for folder in paths_in(self._files):
            for path in paths_in(folder):
                if os.path.basename(path) not in named.files:
                    yield "file", path
        for kind, folder, names in (
            ("data", self._data, named.trees),
            ("spare copy", self._spare, named.spares),
        ):
            for path in paths_in(folder):
                if os.path.basename(path) not in names:
                    yield kind, path
        for path in paths_in(self._incoming):  # `alone` is held, so no sender is at work
            yield "broken upload", path

    def torn(self) -> Iterator[tuple[str, str]]:
        """Yield (kind, path) of interrupted uploads, and of copies that never got their final name."""
        for path in paths_in(self._incoming):
            if os.path.isdir(path):
                yield "broken upload", path
        for folder in (self._data, self._spare):
            for path in paths_in(folder):
                if os.path.basename(path).startswith(PARTS):
                    yield "half-made copy", path

    # contents

    def file(self, sha256: str) -> str:
        """Return the path of the file with this content, which may be missing."""
        return os.path.join(self._files, sha256[:2], sha256)

    def missing(self, manifest: Manifest) -> list[str]:
        """Return the SHA-256 of each file that a client must send before `place` can succeed."""
        return self._missing(code_of(manifest), data_of(manifest))

    def _missing(self, code: FileTree, data: Dict[str, FileTree]) -> list[str]:
        needed: Manifest = {}
        small, large = tree_files.split(code)
        if not os.path.isdir(self._spare_of(small)):
            needed.update(small)
        needed.update(large)
        for entries in data.values():
            if not self._has_data(entries):
                needed.update(entries)
        files = {entry["sha256"]: entry for entry in needed.values() if "sha256" in entry}
        return sorted(sha256 for sha256, entry in files.items() if not self.holds(sha256, entry.get("size")))

    def holds(self, sha256: str, size: int | None) -> bool:
        """Whether the store has the file with this content, judged by its size."""
        try:
            return os.stat(self.file(sha256)).st_size == size
        except OSError:
            return False

    def receive(
        self, stream: Any, files: list[tuple[str, int]], modes: Mapping[str, int] | None = None
    ) -> None:
        """Read files from a stream, one after the other; keep each once it is complete.

        `files` lists (SHA-256, size in bytes). `modes` maps a SHA-256 to the permission bits of the stored file,
        by default 0o444: data trees link the file if it has the bits that they need. Raises ShippingError if a
        file does not have its SHA-256. Files that arrived before a stream broke are kept.
        """
        self.uploads.receive(stream, files, modes or {})

    # placing

    def place(self, manifest: Manifest, run: Run, text: bytes = b"") -> list[str]:
        """Give a run a private copy of its code, and links to its data. Return the missing files; if any, place nothing.

        `text` is the manifest's JSON as it arrived, if the caller has it. It saves encoding the manifest again,
        which takes 7 ms for 10,000 files. The SHA-256 of each code file is checked while copying; a corrupt file
        counts as missing. A large file is linked if the job cannot write to it, unless the plan's `writable`
        names it.
        """
        code, data = code_of(manifest), data_of(manifest)
        missing = self._missing(code, data)
        if missing:
            return missing
        remove_folder(run.incoming)
        os.makedirs(run.incoming)
        try:
            part = os.path.join(run.incoming, "code")
            small, large = tree_files.split(code)
            if not self._take_spare(small, part):
                missing += self._fill(small, part, tree_files.copy)
            missing += self._add_large(large, part, run)
            data_part = os.path.join(run.incoming, "data")
            os.mkdir(data_part)
            for key, entries in data.items():
                missing += self._place_data(entries, os.path.join(data_part, key))
            if not missing:
                write_durably(run.manifest, text or strict_json.encode(manifest))
                os.replace(data_part, run.data)
                os.replace(part, run.code)  # last: a run without code has not begun
                sync_folder(run.work)
        finally:
            remove_folder(run.incoming)
        return missing

    def make_anew(self, run: Run, code: FileTree, data: Dict[str, FileTree]) -> list[str]:
        """Replace code files of a run, and restore lost data. Return the missing files; if any, replace nothing."""
        links = {os.path.join(run.data, key): entries for key, entries in data.items()}
        missing = [sha256 for entries in data.values() for sha256 in self._provide_data(entries)]
        part = os.path.join(run.incoming, "code")
        remove_folder(run.incoming)
        try:
            small, large = tree_files.split(code)
            missing += self._fill(small, part, tree_files.copy)
            missing += self._add_large(large, part, run)
            if missing:
                return missing
            # First, so that a power cut during the replacement leaves the old file or the complete new one.
            sync_tree(part)
            for path in code:
                target = os.path.join(run.code, path)
                # If the job replaced a sent file with a folder, or a folder with a file, keep the job's.
                with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    os.replace(os.path.join(part, path), target)
            for link, entries in links.items():
                if not os.path.isdir(link):
                    os.makedirs(run.data, exist_ok=True)
                    os.symlink(os.path.join(self._data_of(entries), "tree"), link)
        finally:
            remove_folder(run.incoming)
        return []

    def _fill(
        self, entries: Manifest, folder: str, put: Callable[[str, str, ManifestEntry], bool]
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
            else:
                corrupt += self._put(put, target, entry)
        for path, entry in entries.items():
            resolved = os.path.realpath(os.path.join(folder, path)) if "link" in entry else real
            if resolved != real and not resolved.startswith(
                real + os.sep
            ):  # a link may lead out through others
                raise ShippingError("%r: a link to a path outside the tree" % path)
        return corrupt

    def _put(
        self, put: Callable[[str, str, ManifestEntry], bool], target: str, entry: ManifestEntry
    ) -> list[str]:
        """Make a file from a file of the store. If the store's file is corrupt, remove it and return its SHA-256."""
        source = self.file(entry["sha256"])
        if put(source, target, entry):
            return []
        with contextlib.suppress(FileNotFoundError):
            os.unlink(source)
        return [entry["sha256"]]

    # large files

    def _add_large(self, large: FileTree, folder: str, run: Run) -> list[str]:
        """Put large files into a run's code, as links or copies; return the missing and the corrupt files."""
        corrupt = []
        patterns = run.read_plan().get("writable")
        writable = PathPatterns(patterns) if isinstance(patterns, list) and patterns else None
        is_mounted = run_state.probe_of(run).is_in_image  # a container gets the store's trees read-only
        for path, entry in large.items():
            target = os.path.join(folder, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            is_changed = self._clones or (writable is not None and writable.match(path))
            source = None if is_changed else self._shared_file(entry, is_mounted)
            if source is not None:
                os.symlink(source, target)
            else:
                corrupt += self._put(tree_files.copy, target, entry)
        return corrupt

    @functools.cached_property
    def _clones(self) -> bool:
        return tree_files.can_clone(self.path)

    def _shared_file(self, entry: ManifestEntry, is_mounted: bool) -> str | None:
        """Return the path of a large file shared by runs; None if corrupt, or if a job could write to it."""
        if not is_mounted and os.geteuid() == 0:
            return None
        tree = tree_files.tree_of(entry)
        if self._provide_data(tree):
            return None
        path = os.path.join(self._data_of(tree), "tree", tree_files.CONTENT)
        return path if is_mounted or tree_files.is_protected(path) else None

    # data

    def _data_of(self, entries: FileTree) -> str:
        return os.path.join(self._data, entries.digest)

    def _has_data(self, entries: FileTree) -> bool:
        """Return whether a tree is complete, with no file changed since it was made."""
        return tree_files.is_unchanged(self._data_of(entries))

    def _place_data(self, entries: FileTree, link: str) -> list[str]:
        missing = self._provide_data(entries)
        if not missing:
            os.symlink(os.path.join(self._data_of(entries), "tree"), link)
        return missing

    def _provide_data(self, entries: FileTree) -> list[str]:
        """Make sure that a data tree exists unchanged; return the missing and the corrupt files."""
        missing = [] if self._has_data(entries) else self._make_data(entries, self._data_of(entries))
        if missing and self._has_data(entries):  # another client has just made it from these files
            return []
        return missing

    def _make_data(self, entries: FileTree, folder: str) -> list[str]:
        """Make a durable, read-only data tree from store files; return the missing and the corrupt files."""
        os.makedirs(self._data, mode=0o700, exist_ok=True)
        part = tempfile.mkdtemp(prefix="part-", dir=self._data)
        try:
            corrupt = self._fill(entries, os.path.join(part, "tree"), self._adopt)
            if corrupt:
                return corrupt
            tree_files.write_stats(part, entries)
            tree_files.close_folders(os.path.join(part, "tree"))
            # Replace a changed tree: its readers keep their open files, new readers get the new tree.
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

    def _adopt(self, source: str, target: str, entry: ManifestEntry) -> bool:
        is_checked = self.uploads.has_checked(entry["sha256"])
        return tree_files.adopt(source, target, entry, is_checked=is_checked)

    # spares

    def _spare_of(self, entries: FileTree) -> str:
        return os.path.join(self._spare, entries.digest)

    def _take_spare(self, entries: FileTree, target: str) -> bool:
        """Move a spare copy of exactly this tree to a run. Return False if none exists, or if it has changed."""
        folder = self._spare_of(entries)
        taken = tempfile.mkdtemp(prefix="taken-", dir=self._spare) if os.path.isdir(folder) else None
        if taken is None:
            return False
        try:
            os.rename(folder, taken)  # a second taker finds none
            if not tree_files.is_unchanged(taken):
                return False
            os.rename(os.path.join(taken, "tree"), target)
        except OSError:
            return False
        finally:
            remove_folder(taken)
        return True

    def make_spare(self, run: Run) -> bool:
        """Copy a run's code as it was sent, for the next run of the same code; return whether a spare exists.

        Large files are left out, because the next run may have links in their place.
        """
        entries, _ = tree_files.split(code_of(read_manifest(run.manifest)))
        folder = self._spare_of(entries)
        size = sum(entry.get("size", 0) for entry in entries.values())
        if os.path.isdir(folder) or not entries or size > MAX_SPARE_BYTES:
            return os.path.isdir(folder)
        os.makedirs(self._spare, mode=0o700, exist_ok=True)
        part = tempfile.mkdtemp(prefix="part-", dir=self._spare)
        try:
            if self._fill(entries, os.path.join(part, "tree"), tree_files.copy):
                return False
            tree_files.write_stats(part, entries)
            sync_file_system(part)  # a power cut can damage a file without a change of its size or time
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
        for _, path in by_age[:-MAX_SPARES]:
            remove_folder(path)
