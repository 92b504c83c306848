"""Small files that are read whole and replaced whole, so that a crash leaves the old content or the new."""

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
"""The names that clients know for a disk that takes nothing for now."""
_KEPT = (".nfs", ".fuse_hidden")
"""How NFS and FUSE name a file that was removed while it was open."""
MOST_BYTES = 256 << 20
"""No file of ours is larger: the manifest of 200,000 files has 60 MB."""


def write_durably(path: str, text: str | bytes, mode: int = 0o644) -> None:
    """Replace a file so that a reader, or a crash, sees the old text or the new one, never a part."""
    safe_open.replace(path, text.encode() if isinstance(text, str) else text, mode)


def write_over(path: str, text: str) -> None:
    """Write a small file anew where a torn one does no harm: neither replaced nor synced, so that it costs little.

    Its blocks are kept, so that a full disk takes it once it has been written.
    """
    data = text.encode()
    descriptor = safe_open.open_regular(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def write_in_place(path: str, data: bytes) -> None:
    """Write as many bytes as a file has over them, durably: a full disk takes that, for it needs no new block.

    A reader, or a crash, sees all of the old bytes or all of the new ones if they are few.
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
    """Write the files and names below a folder to the disk, however deep; what cannot be opened is passed over.

    Raises OSError if the disk cannot take what was written.
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
    """Pass over what somebody has removed, or made unreadable; not what the disk has lost."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EIO, *NO_ROOM):
            raise


def sync_file_system(folder: str) -> None:
    """Write everything on a folder's file system to the disk: on Linux that one alone. Raises OSError."""
    if not sys.platform.startswith("linux"):
        os.sync()
        return
    import ctypes  # the start of an agent need not wait for it

    with safe_open.opened_folder(folder) as descriptor:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), folder)


def paths_in(folder: str) -> list[str]:
    """Return the paths of what lies in a folder, by name; none where it is missing."""
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except FileNotFoundError:
        return []


def remove_folder(path: str) -> None:
    """Remove a folder with everything in it, if it is there; what cannot be removed stays.

    Folders that their owner may not list or change are opened first: a user may have sent such folders.
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
    """Remove a folder with everything in it, however deep; return the bytes that this frees. Raises OSError.

    A network disk keeps files that somebody has open, under names of its own: they stay, with their folder, for the next
    time. Folders are moved up before they are looked into: a job can nest them deeper than a path, or Python's stack, may be.
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
                os.chmod(entry.path, 0o700)  # or it cannot be moved
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
    """Remove a folder; return False if a disk keeps files in it that somebody has open. Raises OSError."""
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY or not all(name.startswith(_KEPT) for name in os.listdir(folder)):
            raise
        return False
    return True


def read_text(path: str) -> str | None:
    """Return a small file's text, stripped; None where it is missing, or no regular file.

    A job can put a pipe into its checkpoints, which must not stop us, or a file of any size.
    """
    try:
        return safe_open.read_regular(path, MOST_BYTES).decode("utf-8", "replace").strip()
    except (FileNotFoundError, UnreadableError):
        return None


def read_json(path: str) -> JsonObject:
    """Return a record; empty where it is missing or no JSON object (a torn disk, never our own writing)."""
    return parse_json(read_text(path) or "")


def parse_json(text: str) -> JsonObject:
    """Return the record in a text; empty if it is no JSON object."""
    if not text:
        return {}
    try:
        value = strict_json.decode(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
