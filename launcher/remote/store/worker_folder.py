"""The worker, unpacked from the agent's file into a folder of its own, which goes on a training's PYTHONPATH."""

from __future__ import annotations

import os
import zipfile

from ..record.rundir import write_durably


def unpack(agent: str) -> None:
    """Put the worker beside the agent's file, unless it is there already."""
    agent = os.path.abspath(agent)
    target = os.path.join(os.path.dirname(agent), "worker", "launcher_worker.py")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with zipfile.ZipFile(agent) as archive:
        source = archive.read("launcher_worker.py")
    try:
        with open(target, "rb") as file:
            is_whole = file.read() == source
    except FileNotFoundError:
        is_whole = False
    if not is_whole:
        write_durably(target, source)
