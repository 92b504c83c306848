"""The index of this user's batches: a batch is worked, or stopped, only if this user began it.

A file a batch, `~/.local/share/launch/batches/DIGEST.json`, named by the SHA-256 of what the batch was begun with: rules,
and the command and hosts of each item. A queue in a cloned folder is not in it. The folder in the file is a hint.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.runs.json_file import read_json
from launcher.runs.whole_file import sync

if TYPE_CHECKING:
    from launcher.runs.batch_queue import BatchQueue


def enter(queue: BatchQueue) -> None:
    """Enter a batch; it is on the disk when this returns. Raises OSError."""
    path = _file(queue.identity())
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = {"version": 1, "name": queue.name, "folder": str(queue.folder)}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        file.write(f"{json.dumps(record)}\n")
    sync(path, path.parent, path.parent.parent)


def has(queue: BatchQueue) -> bool:
    """Whether this user began a batch, or took it over."""
    return _file(queue.identity()).is_file()


def forget(identity: str, folder: Path) -> None:
    """Remove a batch from the index, with the folder that it had; a copy of that folder leaves it there. Raises OSError."""
    entered = read_json(_file(identity)).get("folder")
    if isinstance(entered, str) and Path(entered) != folder and Path(entered).is_dir():
        return
    _file(identity).unlink(missing_ok=True)


def _file(identity: str) -> Path:
    from platformdirs.unix import Unix

    return Unix("launch").user_data_path / "batches" / f"{identity}.json"
