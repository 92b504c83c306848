"""The files of a tree: made from files of the store, checked, and recorded to detect later changes.

A large file is not copied for each run. In the code, a link to a read-only tree of the store replaces it, as
for data. A job's write to such a file is detected.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import tempfile
from typing import IO, Set

from ..record import strict_json
from ..record.files import read_text, write_durably
from .manifest import (
    FileTree,
    Manifest,
    ManifestEntry,
    code_of,
    data_of,
    mode_of,
    parse_manifest,
    shared_mode_of,
)

STATS = "stats.json"
_SMALL = 1 << 20
_FICLONE = 0x40049409


def copy(source: str, target: str, entry: ManifestEntry) -> bool:
    """Copy a file of the store, checking its SHA-256; return False if it is missing or corrupt."""
    digest = hashlib.sha256()
    try:
        reading = os.open(source, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            is_cloned = entry["size"] > _SMALL and clone(reading, writing)
            for piece in iter(lambda: os.read(reading, _SMALL), b""):
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


def is_as_sent(path: str, entry: ManifestEntry) -> bool:
    """Whether a path of a run's code matches its manifest entry.

    A large file may be a link to the store.
    """
    try:
        status = os.lstat(path)
        if "link" in entry:
            return os.readlink(path) == str(entry["link"])
        if "folder" in entry:
            return stat.S_ISDIR(status.st_mode)
        if not stat.S_ISLNK(status.st_mode) and stat.S_IMODE(status.st_mode) != mode_of(entry):
            return False
        if not os.path.isfile(path) or os.path.getsize(path) != entry["size"]:
            return False
        with open(path, "rb") as file:
            return _digest(file) == str(entry["sha256"])
    except OSError:
        return False


def clone(reading: int, writing: int) -> bool:
    """Share the original's blocks until either file is written to. Return False if the file system cannot.

    Btrfs and XFS can.
    """
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError:
        return False
    return True


def adopt(source: str, target: str, entry: ManifestEntry, *, is_checked: bool = False) -> bool:
    """Link a store file into a tree durably, checking its SHA-256; return False if it is missing or corrupt.

    Set `is_checked` if this process has read the file already and it has not changed. A link has the mode of
    its file, which other trees share, so a tree that needs another mode gets a copy.
    """
    try:
        with open(source, "rb") as file:
            if not is_checked and _digest(file) != entry["sha256"]:
                return False
            os.fsync(file.fileno())
    except FileNotFoundError:
        return False
    mode = shared_mode_of(entry)
    if stat.S_IMODE(os.stat(source).st_mode) == mode:
        with contextlib.suppress(OSError):  # a file system without hard links
            os.link(source, target)  # the same inode: it takes no space
            return True
    if not copy(source, target, {**entry, "mode": mode}):
        return False
    with open(target, "rb") as file:
        os.fsync(file.fileno())
    return True


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in iter(lambda: file.read(_SMALL), b""):
        digest.update(piece)
    return digest.hexdigest()


def close_folders(top: str) -> None:
    """Make the folders of a shared tree read-only.

    Otherwise every run with the tree would see a file that one job added.
    """
    for folder, _, _ in os.walk(top, topdown=False):
        os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) & 0o555 | 0o500)


def write_stats(folder: str, entries: Manifest) -> None:
    """Record the size and time of each file of a finished tree, so that a later change is detected."""
    stats = {}
    for path, entry in entries.items():
        if "sha256" in entry:
            status = os.stat(os.path.join(folder, "tree", path))
            stats[path] = [status.st_size, status.st_mtime_ns]
    write_durably(os.path.join(folder, STATS), strict_json.encode(stats))


def is_unchanged(folder: str) -> bool:
    """Return whether a tree is finished and every file still has its recorded size and time.

    A torn record counts as a change.
    """
    try:
        stats = strict_json.decode(read_text(os.path.join(folder, STATS)) or "")
        top = os.open(os.path.join(folder, "tree"), os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, ValueError):
        return False
    try:
        for path, (size, mtime_ns) in stats.items():
            status = os.stat(path, dir_fd=top)  # a fifth faster than with the whole path
            if status.st_size != size or status.st_mtime_ns != mtime_ns:
                return False
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    finally:
        os.close(top)
    return True


LARGE = 64 << 20
CONTENT = "content"
_REFUSALS = (
    re.compile(r"(?:Permission denied|Read-only file system): '([^'\n]+)'"),
    re.compile(r"(?:^|[\s'])([^\s':]+): (?:Permission denied|Read-only file system)$", re.MULTILINE),
    re.compile(r"File (\S+) cannot be opened"),  # torch.save, which gives no reason
)


def split(code: FileTree) -> tuple[FileTree, FileTree]:
    """Return the tree without its large files (the same object if it has none), and the large files."""
    large = {path for path, entry in code.items() if entry.get("size", 0) >= LARGE}
    if not large:
        return code, FileTree()
    return (
        FileTree({path: entry for path, entry in code.items() if path not in large}),
        FileTree({path: code[path] for path in sorted(large)}),
    )


def tree_of(entry: ManifestEntry) -> FileTree:
    """Return the store's tree for one large file, its only content."""
    return FileTree({CONTENT: entry})


def refused(log: str, code: str) -> str | None:
    """Return the path of the large file whose link a program tried to write, by the end of its log.

    The path is relative to the code. Programs name the link as the script does: `PermissionError: [Errno 13]
    Permission denied: 'model.pt'`.
    """
    for pattern in _REFUSALS:
        for name in pattern.findall(log):
            path = os.path.normpath(os.path.join(code, name))
            is_inside = path.startswith(code + os.sep) and os.path.islink(path)
            if is_inside and os.path.basename(os.path.realpath(path)) == CONTENT:
                return os.path.relpath(path, code)
    return None


def is_protected(path: str) -> bool:
    """Whether a file and its folder refuse this user's writes.

    False for root, and on a file system without modes.
    """
    return not os.access(path, os.W_OK) and not os.access(os.path.dirname(path), os.W_OK)


def can_clone(folder: str) -> bool:
    """Whether a folder's file system can share blocks, so that a copy takes no space."""
    with tempfile.TemporaryFile(dir=folder) as one, tempfile.TemporaryFile(dir=folder) as other:
        one.write(b"?")
        one.flush()
        return clone(one.fileno(), other.fileno())


class NamedContents:
    """The files, data trees and spare copies that the manifests read so far name.

    The manifests are not kept: each may list 200,000 files.
    """

    def __init__(self) -> None:
        """Start with no manifest."""
        self.files: Set[str] = set()
        self.trees: Set[str] = set()
        self.spares: Set[str] = set()
        self._known: Set[bytes] = set()

    def read(self, path: str) -> None:
        """Add the manifest of a run. This is cheap if another run had the same manifest.

        Raises UnreadableError, and OSError.
        """
        text = read_text(path) or ""
        digest = hashlib.sha256(text.encode()).digest()
        if digest not in self._known:
            self.add(parse_manifest(path, text))
            self._known.add(digest)

    def add(self, manifest: Manifest) -> None:
        """Add the contents that a manifest names."""
        code = code_of(manifest)
        small, large = split(code)
        self.files.update(entry["sha256"] for entry in code.values() if "sha256" in entry)
        self.trees.update(tree.digest for tree in data_of(manifest).values())
        self.trees.update(tree_of(entry).digest for entry in large.values())
        self.spares.add(small.digest)
