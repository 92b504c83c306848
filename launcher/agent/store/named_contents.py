"""The store contents that the manifests of runs name, as sets.

The manifests are not kept, since each may list 200,000 files.
"""

from __future__ import annotations

import hashlib
from typing import Set

from ..record.files import read_text
from . import large_files
from .manifest import Manifest, code_of, data_of, parse_manifest


class NamedContents:
    """The files, data trees and spare copies that the manifests read so far name."""

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
        small, large = large_files.split(code)
        self.files.update(entry["sha256"] for entry in code.values() if "sha256" in entry)
        self.trees.update(tree.digest for tree in data_of(manifest).values())
        self.trees.update(large_files.tree_of(entry).digest for entry in large.values())
        self.spares.add(small.digest)
