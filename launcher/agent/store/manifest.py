"""The manifest of a run's upload: its code, its data, and the expected content of each file.

A manifest maps a path below the run (`code/...` or `data/KEY/...`) to a file, {"sha256", "size", "mode"}, a
link, {"link"}, or an empty folder, {"folder": mode}. A mode is the nine permission bits. Example:

    {"code/train.py": {"sha256": "9f86...", "size": 812, "mode": 420}, "code/out": {"folder": 493},
     "data/train/last": {"link": "3.txt"}}

Until 2026-11-22 a file had "exec" instead of "mode": whether its owner may execute it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from typing import Any, Dict, Mapping, TypedDict, cast

from ..record import strict_json
from ..record.files import parse_json, read_text
from ..record.safe_open import UnreadableError

SHA256 = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"(code|data/(?!\.\.?/)[^/\0]+)(?:/(?!\.\.?(?:/|\Z))[^/\0]+)+")
"""A path below code/ or data/KEY/ without empty parts, `.` and `..`.

The group is the folder that the path must stay in.
"""
_NO_NAMES = ("", ".", "..")


class ManifestEntry(TypedDict, total=False):
    """A file, a link or an empty folder of a manifest. Each kind has separate keys; see above."""

    sha256: str
    size: int
    mode: int
    exec: bool
    link: str
    folder: int


Manifest = Dict[str, ManifestEntry]


class ShippingError(Exception):
    """Raised for a tree that differs from its manifest, or cannot be sent now."""


class ChangedFileError(ShippingError):
    """Raised for a file that arrived with other contents than offered. `sha256` is the digest as offered."""

    def __init__(self, sha256: str) -> None:
        """Store the digest."""
        super().__init__("a file changed while it was being sent; launch again")
        self.sha256 = sha256


class FileTree(Manifest):
    """One tree of a manifest: the code or one data source, by paths relative to it."""

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the tree: its paths, contents, modes and links, in any order.

        It is computed once (20 ms for 10,000 files): do not change the tree after the first use.
        """
        lines = strict_json.encode([[path, self[path]] for path in sorted(self)])
        return hashlib.sha256(lines.encode()).hexdigest()


def code_of(manifest: Manifest) -> FileTree:
    """Return the tree below code/, by paths relative to it."""
    return FileTree({path[5:]: entry for path, entry in manifest.items() if path.startswith("code/")})


def data_of(manifest: Manifest) -> Dict[str, FileTree]:
    """Return the trees below data/ by key."""
    trees: Dict[str, FileTree] = {}
    for path, entry in manifest.items():
        if path.startswith("data/"):
            key, _, rest = path[5:].partition("/")
            trees.setdefault(key, FileTree())[rest] = entry
    return trees


def mode_of(entry: ManifestEntry) -> int:
    """Return the permission bits of a file."""
    return entry.get("mode", 0o755 if entry.get("exec") else 0o644)


def shared_mode_of(entry: ManifestEntry) -> int:
    """Return the permission bits of a file that runs share: writable by no user, readable by its owner."""
    return mode_of(entry) & 0o555 | 0o400


def sizes_of(manifest: Manifest) -> dict[str, int]:
    """Return the size in bytes of each content that a manifest names, by its SHA-256."""
    return {entry["sha256"]: entry["size"] for entry in manifest.values() if "sha256" in entry}


def shared_modes_of(manifest: Manifest) -> dict[str, int]:
    """Return one mode for each content that a manifest names, by its SHA-256. Other paths may differ."""
    return {entry["sha256"]: shared_mode_of(entry) for entry in manifest.values() if "sha256" in entry}


def read_manifest(path: str) -> Manifest:
    """Return a run's manifest; empty if nothing was placed. Raises UnreadableError for an invalid one."""
    return parse_manifest(path, read_text(path) or "")


def parse_manifest(path: str, text: str) -> Manifest:
    """Return the manifest in a file's text; empty if torn. Raises UnreadableError for an invalid one."""
    manifest = cast("Manifest", parse_json(text))
    if not all(_is_entry(entry) for entry in manifest.values()):
        raise UnreadableError(path, "is not a manifest")
    return manifest


def _is_entry(entry: Any) -> bool:
    """Whether an entry has the right types. Its values were checked before it was written."""
    if not isinstance(entry, dict):
        return False
    return "sha256" not in entry or (isinstance(entry["sha256"], str) and type(entry.get("size")) is int)


def check(manifest: Any) -> None:
    """Raise ShippingError if a path is outside code/ and data/KEY/, or if a link leads out of its tree."""
    if not isinstance(manifest, dict):
        raise ShippingError("the manifest is not a table")
    # Folders with contents, each with the top folder that it must stay in.
    tops: dict[str, str] = {}
    for path, entry in manifest.items():
        folder, _, name = path.rpartition("/")
        if folder not in tops or name in _NO_NAMES or "\0" in name:
            match = _PATH.fullmatch(path)
            if match is None:
                raise ShippingError("%r is not a path below code/ or data/KEY/" % path)
            top = match[1]
            while folder not in tops:
                tops[folder] = top
                folder = top if folder == top else folder.rpartition("/")[0]
        if not isinstance(entry, dict):
            raise ShippingError("%r is not a path below code/ or data/KEY/" % path)
        if not _is_file(entry):
            _check_link_or_folder(path, entry, tops[path.rpartition("/")[0]])
    for folder in tops.keys() & manifest.keys():
        raise ShippingError("%r has paths below it, and is a file, a link or an empty folder" % folder)


def _check_link_or_folder(path: str, entry: Mapping[str, object], top: str) -> None:
    """Raise ShippingError unless an entry is either a link within its tree or an empty folder."""
    kinds = [kind for kind in ("sha256", "link", "folder") if kind in entry]
    if kinds == ["link"]:
        target = entry["link"]
        if not isinstance(target, str) or not target or "\0" in target or not _is_below(path, target, top):
            raise ShippingError("%r: a link to a path outside the tree" % path)
    elif kinds != ["folder"] or not _is_mode(entry["folder"]):
        raise ShippingError("%r is not a file, a link or an empty folder" % path)


def _is_file(entry: Mapping[str, object]) -> bool:
    sha256, size = entry.get("sha256"), entry.get("size")
    return (
        isinstance(sha256, str)
        and SHA256.fullmatch(sha256) is not None
        and isinstance(size, int)
        and size >= 0
        and ("mode" not in entry or _is_mode(entry["mode"]))
        and "link" not in entry
        and "folder" not in entry
    )


def _is_mode(value: Any) -> bool:
    """Whether a value is a mode without the setuid, setgid and sticky bits, which are never sent."""
    return type(value) is int and 0 <= value <= 0o777


def _is_below(path: str, target: str, top: str) -> bool:
    if os.path.isabs(target):
        return False
    resolved = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return resolved == top or resolved.startswith(top + "/")
