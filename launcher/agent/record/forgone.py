"""Runs that will never be made here: their clients had them go on elsewhere before they began.

A mark stays for ever. A client that was held up on its way to this host, and still means to make the run, is refused.
"""

from __future__ import annotations

import os

from .files import write_durably


def mark(root: str, run_id: str) -> None:
    """See to it that no run of this id is made below a root from now on."""
    os.makedirs(os.path.join(root, "forgone"), mode=0o700, exist_ok=True)
    write_durably(_path(root, run_id), "")


def is_marked(root: str, run_id: str) -> bool:
    """Whether no run of this id may be made below a root."""
    return os.path.exists(_path(root, run_id))


def _path(root: str, run_id: str) -> str:
    return os.path.join(root, "forgone", run_id)
