"""Small files that are read and replaced as a whole, so that a crash leaves the old content or the new."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from typing import Iterator

from . import safe_open, strict_json
from .safe_open import UnreadableError
from .strict_json import JsonObject

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
REFUSED = {errno.ENOSPC: "disk-full", errno.EDQUOT: "quota", errno.EROFS: "read-only"}
"""Error numbers of a disk that refuses writes for now, with the names that clients know."""
_KEPT = (".nfs", ".fuse_hidden")
"""Prefixes that NFS and FUSE give to a file that was removed while open."""
MAX_BYTES = 256 << 20
"""No file of the launcher is larger: the manifest of 200,000 files has 60 MB."""


def write_durably(path: str, text: str | bytes, mode: int = 0o644) -> None:
    """Replace a file so that a reader, or a crash, sees all of the old text or all of the new."""
    safe_open.replace(path, text.encode() if isinstance(text, str) else text, mode)


def write_over(path: str, text: str) -> None:
    """Overwrite a small file in place without a sync. This is cheap, but a crash may leave a torn file.

    The file's blocks are kept: once written, it can be rewritten on a full disk.
    """
    data = text.encode()
    descriptor = safe_open.open_regular(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def write_in_place(path: str, data: bytes) -> None:
    """Overwrite a file with data of the same size, durably. A full disk allows this: it needs no new block.

    If the data is small, a reader or a crash sees all of the old bytes or all of the new ones.
    """
    descriptor = safe_open.open_regular(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(descriptor, data, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    with safe_open.opened_folder(path) as descriptor:
        os.fsync(descriptor)


def sync_tree(top: str) -> None:
    """Sync the files and names below a folder to the disk, at any depth. Skip what cannot be opened.

    Raises OSError if the disk cannot store the written data.
    """
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        with _passing_over():
            with os.scandir(folder) as scan:
                entries = list(scan)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    _sync(entry.path)
            sync_folder(folder)


def _sync(path: str) -> None:
    with _passing_over():
        descriptor = safe_open.open_regular(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _passing_over() -> Iterator[None]:
    """Ignore a file that was removed or made unreadable; raise OSError for an I/O error or a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EIO, *NO_ROOM):
            raise


def sync_file_system(folder: str) -> None:
    """Sync a folder's file system to the disk; outside Linux, sync all file systems. Raises OSError."""
    if not sys.platform.startswith("linux"):
        os.sync()
        return
    import ctypes  # slow to import: keeps the agent's start fast

    with safe_open.opened_folder(folder) as descriptor:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), folder)


def paths_in(folder: str) -> list[str]:
    """Return the paths in a folder, sorted by name; empty if the folder is missing."""
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except FileNotFoundError:
        return []


def remove_folder(path: str) -> None:
    """Remove a folder with everything in it, if it exists. Leave what cannot be removed.

    Folders that their owner may not list or change are made accessible first: an upload may contain such
    folders.
    """
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        with contextlib.suppress(OSError):
            open_folders(path)
        shutil.rmtree(path, ignore_errors=True)


def open_folders(path: str) -> None:
    """Let the owner list and change a folder and all folders in it. Raises OSError."""
    os.chmod(path, 0o700)
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(folder, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)


def remove_tree(top: str) -> int:
    """Remove a folder with everything in it, at any depth. Return the bytes that it frees. Raises OSError.

    A network disk keeps files that a process has open, under special names: they stay, with their folder,
    until the next call. Subfolders are moved to the top before they are read, because a job can nest them
    deeper than a path, or Python's stack, allows.
    """
    size = moved = 0
    kept: list[str] = []
    prefix = os.path.join(top, ".%s-" % os.urandom(8).hex())
    os.chmod(top, 0o700)
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        with os.scandir(folder) as scan:
            entries = list(scan)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)  # otherwise it cannot be moved
                moved += 1
                waiting.append("%s%d" % (prefix, moved))
                os.rename(entry.path, waiting[-1])
            else:
                status = entry.stat(follow_symlinks=False)
                size += status.st_size if status.st_nlink == 1 else 0
                os.unlink(entry.path)
        if folder != top and not _is_removed(folder):
            kept.append(folder)
    if not kept and not _is_removed(top):
        kept.append(top)
    return size


def _is_removed(folder: str) -> bool:
    """Remove a folder; return False if a disk keeps open files in it. Raises OSError."""
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY or not all(name.startswith(_KEPT) for name in os.listdir(folder)):
            raise
        return False
    return True


def read_text(path: str) -> str | None:
    """Return a small file's text, stripped; None if it is missing or not a regular file.

    A job can put a pipe or a file of any size into its checkpoints. Neither may block the agent.
    """
    try:
        return safe_open.read_regular(path, MAX_BYTES).decode("utf-8", "replace").strip()
    except (FileNotFoundError, UnreadableError):
        return None


def read_json(path: str) -> JsonObject:
    """Return a record; empty if it is missing or not a JSON object.

    Only a crash of the host or a fault of the disk damages a record: the agent replaces records as a whole.
    """
    return parse_json(read_text(path) or "")


def parse_json(text: str) -> JsonObject:
    """Return the record in a text; empty if it is not a JSON object."""
    if not text:
        return {}
    try:
        value = strict_json.decode(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
