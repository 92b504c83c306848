"""Mounts: the file system of a path, and whether only one machine can write to it."""

from __future__ import annotations

import os
import re
import sys
from typing import List, Optional, Tuple

_OF_ONE_MACHINE = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "nilfs2"),
    *("tmpfs", "ramfs", "overlay", "vfat", "exfat", "ntfs3"),
}


_LOCKS = {"nfs", "nfs4", "lustre", "cifs", "smb3", "ceph", "gpfs"}
"""The kinds whose options show whether another machine sees a lock."""


def mount_of(path: str) -> Tuple[str, Optional[str]]:
    """Return device and kind of the file system that holds a path. The kind is None if it is unknown."""
    return _mount_of(path)[:2]


def locks_cross(path: str) -> Optional[bool]:
    """Whether other machines see a lock on a file below a path; None if unknown, as through FUSE."""
    return _do_locks_cross(*_mount_of(os.path.realpath(path))[1:])


def _do_locks_cross(kind: Optional[str], options: List[str]) -> Optional[bool]:
    """Decide by kind and options: NFS and CIFS may keep locks on the machine, and Lustre may have none."""
    if kind in _OF_ONE_MACHINE:
        return False
    if kind not in _LOCKS:
        return None
    if kind == "lustre":
        return "flock" in options
    return not {"nolock", "nobrl", "local_lock=all", "local_lock=flock"} & set(options)


def _mount_of(path: str) -> Tuple[str, Optional[str], List[str]]:
    """Return device, kind and options of the file system that holds a path."""
    device, longest = "", -1
    kind: Optional[str] = None
    options: List[str] = []
    try:
        with open("/proc/self/mounts", "rb") as file:
            lines = file.read().splitlines()
    except OSError:  # macOS
        return device, kind, options
    for line in lines:
        cells = [os.fsdecode(_unescaped(cell)) for cell in line.split(b" ")]
        inside = path == cells[1] or path.startswith(cells[1].rstrip("/") + "/")
        if inside and len(cells[1]) >= longest:  # of two on one mount point, the later one is on top
            device, kind, options, longest = cells[0], cells[2], cells[3].split(","), len(cells[1])
    return device, kind, options


def is_of_one_machine(path: str) -> bool:
    """Whether the kind of a path's file system shows that only one machine mounts it. An unknown kind does not.

    Always true on macOS, where the kind is unknown.
    """
    return sys.platform == "darwin" or mount_of(os.path.realpath(path))[1] in _OF_ONE_MACHINE


def _unescaped(cell: bytes) -> bytes:
    r"""Undo the kernel's escapes, e.g. \040 for a space."""
    return re.sub(rb"\\([0-3][0-7]{2})", lambda found: bytes([int(found[1], 8)]), cell)
