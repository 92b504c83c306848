"""The checkpoints that a script saves itself, without the launcher's worker: `checkpoint-N`, as Trainer and Accelerate do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_NAME = re.compile(r"checkpoint-(\d+)")


def newest_own(files: Iterable[Path]) -> Path | None:
    """Return the folder of the newest checkpoint among these files; None without one."""
    saved = {
        folder: int(found[1])
        for path in files
        for folder in path.parents
        if (found := _NAME.fullmatch(folder.name))
    }
    return max(saved, key=lambda folder: saved[folder]) if saved else None
