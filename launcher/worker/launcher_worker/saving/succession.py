"""Succession: an attempt seals no checkpoint once its run has continued in a later folder.

A run continues elsewhere if its agent seemed dead because the machine was frozen or unreachable. Once the
machine is back, the agent kills the training. A checkpoint sealed before the kill must not be taken for one
of the later attempt.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any, FrozenSet, Mapping, Optional

from ..values import knobs


class SupersededError(RuntimeError):
    """Raised when an attempt tries to save after its run has continued in a later attempt."""


def check_fence() -> None:
    """Raise SupersededError if the run has a later folder than this attempt's."""
    attempt, number = os.environ.get("LAUNCH_ATTEMPT"), knobs().folder
    if attempt is None or number is None:
        return
    record = os.path.dirname(attempt)
    later = f"{number + 1:04}"
    try:
        folder = os.open(record, os.O_RDONLY)  # opening the folder makes a network file system ask its server
    except FileNotFoundError:  # the run is being removed
        return
    try:
        os.stat(later, dir_fd=folder)
    except FileNotFoundError:
        return
    finally:
        os.close(folder)
    raise SupersededError(f"the run continues in {later}: this attempt must not save")


def is_late(manifest: Mapping[str, Any], data: bytes) -> bool:
    """Return whether an earlier attempt sealed this checkpoint after the current attempt had begun.

    `data` are the bytes of the manifest.
    """
    values, sealer = knobs(), manifest.get("folder")
    if values.folder is None or manifest.get("run") != values.run or not isinstance(sealer, int):
        return False
    before = _sealed_before(os.environ.get("LAUNCH_ATTEMPT"))
    return sealer < values.folder and before is not None and hashlib.sha256(data).hexdigest() not in before


@functools.lru_cache(maxsize=None)
def _sealed_before(attempt: Optional[str]) -> Optional[FrozenSet[str]]:
    """Return the digests of the manifests that existed before this attempt; None if they are not on record."""
    try:
        return frozenset(json.loads(Path(attempt or "", "sealed.json").read_bytes())["manifests"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
