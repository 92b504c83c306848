"""What clients have sent to this host, once per content, and a run's own copy of it.

<root>/store/
  lock            shared by whoever ships, exclusive for `gc`
  files/ab/...    files by their SHA-256, read-only
  data/<digest>/  models and data that a client has sent, whole trees; shared by the runs that name the same content
  spare/<digest>/ a copy of a code tree, made ahead: the next run of the same code takes it as its own
  incoming/NAME/  one upload; NAME.lock is held by the agent that receives it

A manifest maps a path below the run (`code/...` or `data/KEY/...`) to {"sha256", "size", "exec"} or {"link"}.
A run's code is a copy of its own, which it may write to; it never holds a link into the store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
import tempfile
from typing import Any, Callable, Dict, Iterator

from ..record import strict_json
from ..record.rundir import Lock, Run, paths_in, read_json, sync_folder, write_durably

CHUNK = 1 << 18
SMALL = 1 << 20
MOST_SPARES = 3
MOST_SPARE_BYTES = 1 << 30
HOLDERS_S = 30.0
STATS = "stats.json"
PARTS = ("part-", "taken-", "spoilt-")
SHA256 = re.compile(r"[0-9a-f]{64}")
_FICLONE = 0x40049409

Manifest = Dict[str, Dict[str, Any]]


class Tree(Manifest):
    """The part of a manifest that is one tree, by the paths in it."""

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the tree: its paths, contents, exec bits and links, whatever their order.

        It is computed once (20 ms for 10,000 files): a tree is not changed after it was first asked for.
        """
        lines = strict_json.encode([[path, self[path]] for path in sorted(self)])
        return hashlib.sha256(lines.encode()).hexdigest()


def main(arguments: list[str]) -> int:
    """Make a spare copy of a run's code, with whatever the machine has to spare; return 0."""
    run = Run(os.path.abspath(arguments[0]))
    os.nice(19)
    store = Store(os.path.dirname(os.path.dirname(run.path)))
    with store.shared():
        store.make_spare(run)
    return 0


class ShippingError(Exception):
    """A tree that did not arrive as its manifest says."""


class Store:
    """The store below a root. While it is open no `gc` runs beside it."""

    def __init__(self, root: str) -> None:
        """Name the paths; nothing is made."""
        self.path = os.path.join(root, "store")
        self._files = os.path.join(self.path, "files")
        self._data = os.path.join(self.path, "data")
        self._spare = os.path.join(self.path, "spare")
        self._incoming = os.path.join(self.path, "incoming")

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Keep `gc` away while a tree is offered, received and put in place. Raises ShippingError when it is at work."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        lock = Lock.take(os.path.join(self.path, "lock"), HOLDERS_S, shared=True)
        if lock is None:
            raise ShippingError("`launch gc` is at work on this host: try again")
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the store against everybody, for `gc`. Raises ShippingError while somebody ships."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        lock = Lock.take(os.path.join(self.path, "lock"))
        if lock is None:
            raise ShippingError("somebody is sending a tree to this host: try again")
        try:
            yield
        finally:
            lock.release()

    def unnamed(self, manifests: list[Manifest]) -> Iterator[tuple[str, str]]:
        """Yield (kind, path) of whatever here none of the manifests names. To be called while the store is held."""
        codes = [code_of(manifest) for manifest in manifests]
        files = {one["sha256"] for code in codes for one in code.values() if "sha256" in one}
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
        for path in paths_in(self._incoming):  # whoever sent it holds the store no more
            yield "broken upload", path

    def torn(self) -> Iterator[tuple[str, str]]:
        """Yield (kind, path) of what was broken off while it was made: uploads, and copies that never got their name."""
        for path in paths_in(self._incoming):
            if os.path.isdir(path):
                yield "broken upload", path
        for folder in (self._data, self._spare):
            for path in paths_in(folder):
                if os.path.basename(path).startswith(PARTS):
                    yield "half-made copy", path

    def remove_upload(self, path: str) -> bool:
        """Remove an upload that nobody receives any more; return whether it is gone."""
        lock = Lock.take(path + ".lock", 0.0)
        if lock is not None:
            self._remove_upload(path)
            lock.release()
        return not os.path.lexists(path)

    # what is here

    def file(self, sha256: str) -> str:
        """Return where the file of this content lies, if it is here."""
        return os.path.join(self._files, sha256[:2], sha256)

    def missing(self, manifest: Manifest) -> list[str]:
        """Return the SHA-256 of the files that a client must send before `place` can do its work."""
        return self._missing(code_of(manifest), data_of(manifest))

    def _missing(self, code: Tree, data: Dict[str, Tree]) -> list[str]:
        wanted: Manifest = {}
        if not os.path.isdir(self._spare_of(code)):
            wanted.update(code)
        for entries in data.values():
            if not self._has_data(entries):
                wanted.update(entries)
        found = {one["sha256"]: one for one in wanted.values() if "sha256" in one}
        return sorted(sha256 for sha256, one in found.items() if not self._holds(sha256, one))

    def _holds(self, sha256: str, entry: dict[str, Any]) -> bool:
        try:
            return os.stat(self.file(sha256)).st_size == entry.get("size")
        except OSError:
            return False

    # what arrives

    def receive(self, stream: Any, wanted: list[tuple[str, int]]) -> None:
        """Take files one behind the other from a stream, as (SHA-256, size in bytes) say; each counts once it is whole.

        Raises ShippingError for one that is another. What arrived before a stream broke need not be sent again.
        """
        os.makedirs(self._incoming, mode=0o700, exist_ok=True)
        self._sweep_incoming()
        folder = os.path.join(self._incoming, os.urandom(8).hex())
        lock = Lock.take(folder + ".lock")
        try:
            os.mkdir(folder)
            for sha256, size in wanted:
                self._take(stream, sha256, size, os.path.join(folder, "file"))
        finally:
            self._remove_upload(folder)
            if lock is not None:
                lock.release()

    def _remove_upload(self, folder: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder + ".lock")

    def _take(self, stream: Any, sha256: str, size: int, part: str) -> None:
        digest = hashlib.sha256()
        with open(part, "wb") as file:
            while size:
                piece = stream.read(min(size, CHUNK))
                if not piece:
                    raise ShippingError("the stream ends early")
                size -= len(piece)
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != sha256:
            raise ShippingError("a file changed while it was being sent: launch again")
        os.chmod(part, 0o444)
        target = self.file(sha256)
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        os.replace(part, target)

    def _sweep_incoming(self) -> None:
        """Remove uploads whose agent has died: their lock is free."""
        for name in os.listdir(self._incoming):
            folder = os.path.join(self._incoming, name)
            if os.path.isdir(folder):
                self.remove_upload(folder)

    # into a run

    def place(self, manifest: Manifest, run: Run) -> list[str]:
        """Give a run its code, as a copy of its own, and its data; return what is missing for it (then nothing is done).

        Every file of the code is proven by its SHA-256 on the way; one that was spoilt here counts as missing.
        """
        code, data = code_of(manifest), data_of(manifest)
        missing = self._missing(code, data)
        if missing:
            return missing
        shutil.rmtree(run.incoming, ignore_errors=True)
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
                os.replace(part, run.code)  # last: a run without its code never began
                sync_folder(run.path)
        finally:
            shutil.rmtree(run.incoming, ignore_errors=True)
        return missing

    def _fill(
        self, entries: Manifest, folder: str, put: Callable[[str, str, dict[str, Any]], bool]
    ) -> list[str]:
        """Make a tree of files of the store, links last; return what of it is missing or spoilt."""
        spoilt = []
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
            elif not put(self.file(entry["sha256"]), target, entry):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.file(entry["sha256"]))
                spoilt.append(entry["sha256"])
        for path, entry in entries.items():
            place = os.path.realpath(os.path.join(folder, path)) if "link" in entry else real
            if place != real and not place.startswith(real + os.sep):  # by way of other links
                raise ShippingError("%r: a link out of the tree" % path)
        return spoilt

    # data

    def _data_of(self, entries: Tree) -> str:
        return os.path.join(self._data, entries.digest)

    def _has_data(self, entries: Tree) -> bool:
        """Whether a tree is here, whole, and none of its files was written to since."""
        return _is_unchanged(self._data_of(entries))

    def _place_data(self, entries: Tree, place: str) -> list[str]:
        folder = self._data_of(entries)
        missing = [] if self._has_data(entries) else self._make_data(entries, folder)
        if missing and not self._has_data(entries):  # or another client has just made it, of the very files
            return missing
        os.symlink(os.path.join(folder, "tree"), place)
        return []

    def _make_data(self, entries: Tree, folder: str) -> list[str]:
        """Make files of the store a tree of the data, durably and read-only; return what is missing or spoilt."""
        os.makedirs(self._data, mode=0o700, exist_ok=True)
        part = tempfile.mkdtemp(prefix="part-", dir=self._data)
        try:
            spoilt = self._fill(entries, os.path.join(part, "tree"), _adopt)
            if spoilt:
                return spoilt
            _write_stats(part, entries)
            # One that was written to: whoever did so reads on by an open file, nobody else should.
            if os.path.isdir(folder):
                os.rename(folder, tempfile.mkdtemp(prefix="spoilt-", dir=self._data))
            try:
                os.rename(part, folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return []

    # spares

    def _spare_of(self, entries: Tree) -> str:
        return os.path.join(self._spare, entries.digest)

    def _take_spare(self, entries: Tree, place: str) -> bool:
        """Make a spare copy of this very tree the run's own; whether there was one, as it was made."""
        folder = self._spare_of(entries)
        taken = tempfile.mkdtemp(prefix="taken-", dir=self._spare) if os.path.isdir(folder) else None
        if taken is None:
            return False
        try:
            os.rename(folder, taken)  # whoever comes second finds none
            if not _is_unchanged(taken):
                return False
            os.rename(os.path.join(taken, "tree"), place)
        except OSError:
            return False
        finally:
            shutil.rmtree(taken, ignore_errors=True)
        return True

    def make_spare(self, run: Run) -> bool:
        """Make a copy of a run's code tree, as it was sent, for the next run of the same code; whether there is one now."""
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
            shutil.rmtree(part, ignore_errors=True)
        self._drop_old_spares()
        return True

    def _drop_old_spares(self) -> None:
        found = sorted(
            (os.stat(path).st_mtime, path)
            for path in (os.path.join(self._spare, n) for n in os.listdir(self._spare))
        )
        for _, path in found[:-MOST_SPARES]:
            shutil.rmtree(path, ignore_errors=True)


def code_of(manifest: Manifest) -> Tree:
    """Return the part of a manifest below code/, by the paths there."""
    return Tree({path[5:]: entry for path, entry in manifest.items() if path.startswith("code/")})


def data_of(manifest: Manifest) -> Dict[str, Tree]:
    """Return the parts of a manifest below data/, by key and then by the path there."""
    found: Dict[str, Tree] = {}
    for path, entry in manifest.items():
        if path.startswith("data/"):
            key, _, rest = path[5:].partition("/")
            found.setdefault(key, Tree())[rest] = entry
    return found


def _copy(source: str, target: str, entry: dict[str, Any]) -> bool:
    """Copy a file of the store and prove it by its SHA-256; False where it is missing or spoilt."""
    digest = hashlib.sha256()
    try:
        reading = os.open(source, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755 if entry.get("exec") else 0o644)
        try:
            is_cloned = entry["size"] > SMALL and _clone(reading, writing)
            for piece in iter(lambda: os.read(reading, SMALL), b""):
                digest.update(piece)
                view = memoryview(b"" if is_cloned else piece)
                while view:
                    view = view[os.write(writing, view) :]
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    return bool(digest.hexdigest() == entry["sha256"])


def _clone(reading: int, writing: int) -> bool:
    """Let a copy share its blocks with the original until one is written to, where the file system can (btrfs, xfs)."""
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError:
        return False
    return True


def _adopt(source: str, target: str, entry: dict[str, Any]) -> bool:
    """Prove a file of the store by its SHA-256 and give it a name in a tree, durably; False where it is spoilt."""
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
    try:
        os.link(source, target)  # one content, two names: it takes no room
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
    os.chmod(target, 0o555 if entry.get("exec") else 0o444)
    return True


def _write_stats(folder: str, entries: Manifest) -> None:
    """Put down, last, what each file of a tree looks like: one that was written to since is not what it was."""
    stats = {}
    for path, entry in entries.items():
        if "link" not in entry:
            found = os.stat(os.path.join(folder, "tree", path))
            stats[path] = [found.st_size, found.st_mtime_ns]
    write_durably(os.path.join(folder, STATS), strict_json.encode(stats))


def _is_unchanged(folder: str) -> bool:
    """Whether a tree is whole and every file of it has the size and time that it had."""
    if not os.path.exists(os.path.join(folder, STATS)):
        return False
    try:
        for path, (size, mtime_ns) in read_json(os.path.join(folder, STATS)).items():
            found = os.stat(os.path.join(folder, "tree", path))
            if found.st_size != size or found.st_mtime_ns != mtime_ns:
                return False
    except OSError:
        return False
    return True


def check(manifest: Any) -> None:
    """Raise ShippingError for a manifest that names anything beside code/ and data/KEY/, or a link out of its tree."""
    if not isinstance(manifest, dict):
        raise ShippingError("the manifest is no table")
    links = set()
    for path, entry in manifest.items():
        top = _top(path)
        if top is None or not isinstance(entry, dict):
            raise ShippingError("%r is no path of a tree" % path)
        if "link" in entry:
            links.add(path)
            target = entry["link"]
            if (
                not isinstance(target, str)
                or not target
                or "\0" in target
                or not _is_below(path, target, top)
            ):
                raise ShippingError("%r: a link out of the tree" % path)
        elif not (
            isinstance(entry.get("sha256"), str)
            and SHA256.fullmatch(entry["sha256"])
            and isinstance(entry.get("size"), int)
            and entry["size"] >= 0
        ):
            raise ShippingError("%r is neither a file nor a link" % path)
    for path in manifest:
        parent = os.path.dirname(path)
        while parent:
            if parent in links or parent in manifest:
                raise ShippingError("%r lies behind what is no folder" % path)
            parent = os.path.dirname(parent)


def _top(path: Any) -> str | None:
    """Return the folder that a path of a manifest may not leave; None for what is no such path."""
    if not isinstance(path, str) or "\0" in path or os.path.normpath(path) != path or os.path.isabs(path):
        return None
    parts = path.split("/")
    if parts[0] == "code" and len(parts) > 1:
        return "code"
    if parts[0] == "data" and len(parts) > 2 and parts[1] != "..":
        return "/".join(parts[:2])
    return None


def _is_below(path: str, target: str, top: str) -> bool:
    if os.path.isabs(target):
        return False
    place = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return place == top or place.startswith(top + "/")
