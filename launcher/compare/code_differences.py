"""The files of code and data that differ between runs. The contents sent for each run are compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from launcher.values.base import canonical_json
from launcher.values.public_result import public

Manifest = Mapping[str, Mapping[str, Any]]
CODE = "code"
_SHORT = 8
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


@public("TreeDifferenceShown")
class TreeDifference(NamedTuple):
    """A tree that differs, `code` or `data/KEY`, and the digest of its contents for each run."""

    tree: str
    digests: tuple[str | None, ...]


class FileDifference(NamedTuple):
    """A file of the code that differs, and its version for each run; None for a run without the file.

    A version is the file's SHA-256, with `+x` if it is executable, or words: `link to TARGET`, `empty
    folder`.
    """

    path: str
    versions: tuple[str | None, ...]


def tree_differences(manifests: Sequence[Manifest | None]) -> list[TreeDifference]:
    """Return the trees that differ between the runs with a known manifest, the code first."""
    trees = [tree_digests(manifest or {}) for manifest in manifests]
    found = []
    for name in sorted({name for tree in trees for name in tree}):
        digests = tuple(tree.get(name) for tree in trees)
        if _differ(digests, manifests):
            found.append(TreeDifference(name, digests))
    return found


def tree_digests(manifest: Manifest) -> dict[str, str]:
    """Return a digest of the contents of each tree that was sent: `code`, and `data/KEY` for each key of the job."""
    return {
        name: hashlib.sha256(canonical_json(dict(tree)).encode()).hexdigest()
        for name, tree in _by_tree(manifest).items()
    }


def file_differences(manifests: Sequence[Manifest | None]) -> list[FileDifference]:
    """Return the files of the code that differ between the runs with a known manifest, by path."""
    codes = [_by_tree(manifest or {}).get(CODE, {}) for manifest in manifests]
    found = []
    for path in sorted({path for code in codes for path in code}):
        versions = tuple(code.get(path) for code in codes)
        if _differ(versions, manifests):
            found.append(FileDifference(path.removeprefix(f"{CODE}/"), versions))
    return found


def shortened(version: str) -> str:
    """Return a version or a digest in its displayed form."""
    return _DIGEST.sub(lambda digest: digest[0][:_SHORT], version)


def _differ(values: Sequence[str | None], manifests: Sequence[Manifest | None]) -> bool:
    known = [value for value, manifest in zip(values, manifests, strict=True) if manifest is not None]
    return len({*known}) > 1


def _by_tree(manifest: Manifest) -> dict[str, dict[str, str]]:
    """Return the version of each path, by its tree. Of a file's mode, only the execute bit counts."""
    trees: dict[str, dict[str, str]] = {}
    for path, entry in manifest.items():
        parts = path.split("/")
        name = parts[0] if parts[0] == CODE else "/".join(parts[:2])
        trees.setdefault(name, {})[path] = _version(entry)
    return trees


def _version(entry: Mapping[str, Any]) -> str:
    if "link" in entry:
        return f"link to {entry['link']}"
    if "sha256" not in entry:
        return "empty folder"
    is_program = isinstance(entry.get("mode"), int) and entry["mode"] & 0o100
    return f"{entry['sha256']}{' +x' if is_program else ''}"
