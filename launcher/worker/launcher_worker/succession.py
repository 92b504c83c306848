"""Succession: an attempt seals nothing once its run has gone on in a later folder.

That happens if its agent was thought to be dead, because its machine was frozen or out of reach. The agent kills the
training when it is back; what is sealed before that must not be mixed up with what the later attempt seals.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any, FrozenSet, Mapping, Optional

from .values import knobs


class SupersededError(RuntimeError):
    """Raised where an attempt would save, and its run has gone on without it."""


def check_fence() -> None:
    """Raise SupersededError if there is a later folder of the run than this attempt's."""
    attempt, number = os.environ.get("LAUNCH_ATTEMPT"), knobs().folder
    if attempt is None or number is None:
        return
    record = os.path.dirname(attempt)
    later = f"{number + 1:04}"
    try:
        folder = os.open(record, os.O_RDONLY)  # a network file system then asks its server
    except FileNotFoundError:  # the run is being removed
        return
    try:
        os.stat(later, dir_fd=folder)
    except FileNotFoundError:
        return
    finally:
        os.close(folder)
    raise SupersededError(f"the run goes on in {later}: this attempt saves nothing more")


def is_late(manifest: Mapping[str, Any], data: bytes) -> bool:
    """Whether an earlier attempt sealed a checkpoint after this one had begun; `data` are the bytes of its manifest."""
    values, sealer = knobs(), manifest.get("folder")
    if values.folder is None or manifest.get("run") != values.run or not isinstance(sealer, int):
        return False
    before = _sealed_before(os.environ.get("LAUNCH_ATTEMPT"))
    return sealer < values.folder and before is not None and hashlib.sha256(data).hexdigest() not in before


@functools.lru_cache(maxsize=None)
def _sealed_before(attempt: Optional[str]) -> Optional[FrozenSet[str]]:
    """Return the digests of the manifests that were there before this attempt; None if that is not on record."""
    try:
        return frozenset(json.loads(Path(attempt or "", "sealed.json").read_bytes())["manifests"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
