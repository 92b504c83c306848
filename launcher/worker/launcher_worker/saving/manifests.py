"""Manifests seal checkpoints: `manifest.json` lists every file of a folder with its size and SHA-256.

The manifest is written last, when all files are on the disk. A checkpoint without a matching manifest does
not count.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import List, Optional, TypedDict, cast

from ..channel import beat
from ..pace import process_pace
from ..values import knobs
from .succession import check_fence, is_late

MANIFEST = "manifest.json"


def seal(folder: Path, step: int, epoch: Optional[float]) -> None:
    """Write the manifest of a complete checkpoint, last and in one piece.

    Raises SupersededError, with nothing sealed, if a later attempt has replaced this one.
    """
    temporary = folder / (MANIFEST + ".tmp")
    files = {}
    folders = [folder]
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            folders.append(path)
        elif path not in (folder / MANIFEST, temporary):
            files[path.relative_to(folder).as_posix()] = _sync_and_hash(path)
            beat(step)  # reading a large file takes time
    for path in folders:
        sync_folder(path)
    values = knobs()
    manifest = {
        "version": 1,
        "run": values.run,
        "attempt": values.attempt,
        "folder": values.folder,
        "step": int(step),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "precision": values.peek.precision.mode,
        "data": {"examples": int(step) * values.peek.split.global_batch, "epoch": epoch},
        "eval_loss": process_pace.eval_loss(step),
        "files": files,
    }
    with open(temporary, "w", encoding="utf-8") as out:
        json.dump(manifest, out, indent=1, allow_nan=False)
        out.flush()
        os.fsync(out.fileno())
    check_fence()
    os.replace(temporary, folder / MANIFEST)
    sync_folder(folder)


class ManifestFile(TypedDict):
    """A file of a checkpoint."""

    size: int
    sha256: str


class _Manifest(TypedDict):
    path: str
    step: int


class SealedManifest(_Manifest, total=False):
    """The fields that the worker reads from the manifest of a sealed checkpoint, plus its `path`."""

    eval_loss: float


def sealed_checkpoints(checkpoints: Path) -> List[SealedManifest]:
    """Return the manifests of all sealed checkpoints, each with its `path`.

    A checkpoint that an earlier attempt sealed after this one had begun does not count: see succession.py.
    """
    manifests: List[SealedManifest] = []
    for path in checkpoints.glob(f"[!.]*/{MANIFEST}"):
        try:
            data = path.read_bytes()
            manifest = json.loads(data)
            step = int(manifest["step"])
            if not is_late(manifest, data):
                found = {**manifest, "path": str(path.parent), "step": step}
                manifests.append(cast("SealedManifest", found))
        except (
            OSError,
            ValueError,
            TypeError,
            KeyError,
        ):  # damaged, or not a manifest of launcher: left to the agent
            continue
    return manifests


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_and_hash(path: Path) -> ManifestFile:
    """Flush a file to the disk; return its size (bytes) and SHA-256."""
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            size += len(block)
    return {"size": size, "sha256": digest.hexdigest()}
