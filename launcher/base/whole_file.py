"""Write a file atomically: after a crash, and for a reader, it has the old contents or the new, never a part."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def write_whole(path: Path, data: bytes, like: os.stat_result | None = None) -> None:
    """Replace a file, making its folder if needed. Raises OSError, and then leaves the old file unchanged.

    `like` has its permissions, and its owner if this user may set one; without it, they are those of a new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)  # of a killed process, or a planted link: it is never written through
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if like is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        if like is not None:
            with contextlib.suppress(PermissionError):
                os.chown(part, like.st_uid, like.st_gid)
            part.chmod(stat.S_IMODE(like.st_mode))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file, and return once it is on the disk. Raises OSError."""
    write_whole(path, data)
    sync(path, path.parent)


def sync(*paths: Path) -> None:
    """Write the contents of these files, and the names in these folders, to the disk. Raises OSError."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
