"""Runs that must never start on this host: their clients moved them to another host before they began.

A mark is permanent. It refuses a client whose request to start the run arrives late.
"""

from __future__ import annotations

import os

from .files import write_durably


def mark(root: str, run_id: str) -> None:
    """Forbid a run of this id below a root from now on."""
    os.makedirs(os.path.join(root, "forgone"), mode=0o700, exist_ok=True)
    write_durably(_path(root, run_id), "")


def is_marked(root: str, run_id: str) -> bool:
    """Whether a run of this id is forbidden below a root."""
    return os.path.exists(_path(root, run_id))


def _path(root: str, run_id: str) -> str:
    return os.path.join(root, "forgone", run_id)
