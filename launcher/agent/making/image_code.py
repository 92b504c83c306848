"""The folder for the agent's code, compiled by an image's Python, and its check; see compiled_code.py."""

from __future__ import annotations

import os


def folder_of(agent: str, image: str) -> str:
    """Return the folder for an image's compiled code of a file of the agent. `image` is its id in hex."""
    return os.path.join(os.path.dirname(agent), "images", image)


def is_compiled(agent: str, folder: str) -> bool:
    """Whether a folder contains compiled code of exactly this file of the agent. Raises OSError."""
    since = os.stat(agent).st_mtime_ns
    with os.scandir(folder) as entries:
        return any(entry.stat(follow_symlinks=False).st_mtime_ns >= since for entry in entries)
