"""A run's checkpoints, as far as the agent minds them: which are sealed, and which nobody may go on from."""

from __future__ import annotations

import os
import tempfile

from .rundir import paths_in, read_json, sync_folder

MANIFEST = "manifest.json"


def sealed(folder: str) -> list[tuple[int, str]]:
    """Return (step, path) of the checkpoints that the worker has sealed, the newest last."""
    found = []
    for path in paths_in(folder):
        if os.path.isdir(path) and not os.path.basename(path).startswith("."):
            step = read_json(os.path.join(path, MANIFEST)).get("step")
            if isinstance(step, int):
                found.append((step, path))
    return sorted(found)


def set_aside(folder: str, since: int) -> list[str]:
    """Move the checkpoints of a step and later into a hidden folder, where none is looked for; return their names.

    They are moved, not removed: a person may want to see what went wrong. Done twice, it does nothing the second time.
    Raises OSError if the disk refuses.
    """
    bad = [path for step, path in sealed(folder) if step >= since]
    if bad:
        aside = tempfile.mkdtemp(prefix=".rejected-", dir=folder)
        for path in bad:
            os.rename(path, os.path.join(aside, os.path.basename(path)))
        sync_folder(aside)
        sync_folder(folder)
    return [os.path.basename(path) for path in bad]
