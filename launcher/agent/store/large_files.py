"""Large files of a run's code: find them, and detect a job's write to one.

A large file is not copied for each run. In the code, a link to a read-only tree of the store replaces it, as
for data.
"""

from __future__ import annotations

import os
import re
import tempfile

from . import tree_files
from .manifest import FileTree, ManifestEntry

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
        return tree_files.clone(one.fileno(), other.fileno())
