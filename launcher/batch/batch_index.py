"""The index of this user's batches. A batch is worked on, or stopped, only if this user began it.

Each batch has a file `~/.local/share/launch/batches/DIGEST.json`. DIGEST is the SHA-256 of the batch's
definition: its present rules, and the command and hosts of each item. A queue in a cloned folder is not in
the index. The folder in the file is a hint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.json_file import read_json
from launcher.base.whole_file import sync, write_durably
from launcher.errors import RunError

if TYPE_CHECKING:
    from launcher.batch.batch_queue import BatchQueue


def enter(queue: BatchQueue) -> None:
    """Add a batch with its folder to the index. Return once it is on disk. Raises RunError."""
    path = _file(queue.identity())
    record = {"version": 1, "name": queue.name, "folder": str(queue.folder)}
    if read_json(path) == record:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(path, f"{json.dumps(record)}\n".encode())
        sync(path.parent.parent)
    except OSError as error:
        raise RunError(f"{error.filename or path}: {error.strerror}\n  nothing was begun") from error


def has(queue: BatchQueue) -> bool:
    """Whether this user began a batch, or took it over."""
    return _file(queue.identity()).is_file()


def folder_of(identity: str) -> Path | None:
    """Return the last known folder of a batch, or None if it no longer exists."""
    entered = read_json(_file(identity)).get("folder")
    return Path(entered) if isinstance(entered, str) and Path(entered).is_dir() else None


def forget(identity: str, folder: Path) -> None:
    """Remove a batch from the index, unless the index names another folder for it: this one is then a copy.

    Raises OSError.
    """
    if folder_of(identity) in (None, folder):
        _file(identity).unlink(missing_ok=True)


def _file(identity: str) -> Path:
    from platformdirs.unix import Unix

    return Unix("launch").user_data_path / "batches" / f"{identity}.json"
