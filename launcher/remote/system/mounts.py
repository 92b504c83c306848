"""Mounts: which file system holds a path, and whether one machine alone can write to it."""

from __future__ import annotations

import os
import re
import sys
from typing import Optional, Tuple

_OF_ONE_MACHINE = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "nilfs2"),
    *("tmpfs", "ramfs", "overlay", "vfat", "exfat", "ntfs3"),
}


def mount_of(path: str) -> Tuple[str, Optional[str]]:
    """Return device and kind of the file system that holds a path; the kind is None if it is not known."""
    device, kind, longest = "", None, -1
    try:
        with open("/proc/self/mounts", "rb") as file:
            lines = file.read().splitlines()
    except OSError:  # macOS
        return device, kind
    for line in lines:
        cells = [os.fsdecode(_unescaped(cell)) for cell in line.split(b" ")]
        inside = path == cells[1] or path.startswith(cells[1].rstrip("/") + "/")
        if inside and len(cells[1]) >= longest:  # of two on one mount point, the later one is on top
            device, kind, longest = cells[0], cells[2], len(cells[1])
    return device, kind


def is_of_one_machine(path: str) -> bool:
    """Whether a path lies on a file system that only one machine mounts, by its kind. A kind that is not known is not one.

    macOS does not tell the kind; there it is taken for one.
    """
    return sys.platform == "darwin" or mount_of(os.path.realpath(path))[1] in _OF_ONE_MACHINE


def _unescaped(cell: bytes) -> bytes:
    r"""Undo the kernel's escapes, e.g. \040 for a space."""
    return re.sub(rb"\\([0-3][0-7]{2})", lambda found: bytes([int(found[1], 8)]), cell)
