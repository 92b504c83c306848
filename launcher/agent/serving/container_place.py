"""The parts of this host that a run's container needs."""

from __future__ import annotations

import os
import sys
from typing import List, TypedDict

from ..cards import lease
from ..host.probe_host import user
from ..record.rundir import Run
from ..system import process
from .session import ClientSession


class ContainerPaths(TypedDict):
    """A container's view of its host: the paths that it may read or write, its user, and the agent."""

    path: str
    home: str
    agent: str
    host_id: str
    root: str
    user: str
    uid: int
    gid: int
    groups: List[int]
    read: List[str]
    written: List[str]


def container_place(session: ClientSession, run: Run) -> ContainerPaths:
    """Return the paths that a run's container reads and writes, made if missing, and its user.

    It may write its record and its work, but not the files that control the run. It sees only the leases of
    its own cards.
    """
    agent = os.path.abspath(sys.argv[0])
    record = run.prepared()
    agent_folder = record.get("agent_folder") or os.path.dirname(agent)
    data = os.path.join(session.store.path, "data")
    for folder in (run.cache, data):
        os.makedirs(folder, exist_ok=True)
    has_own_control = run.control != run.path  # not in a run from before 2026-11-22
    written = [run.record, run.work] if has_own_control else [run.path]
    read = [run.path] if has_own_control else []
    read += [agent_folder, data, *lease.files_of(session.root, run.cards())]
    return {
        "path": run.path,
        "home": run.home,
        "agent": os.path.join(agent_folder, os.path.basename(agent)),
        "host_id": process.host_id(),
        "root": session.label,
        "user": user(),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": os.getgroups(),
        "read": [*read, *((record.get("runtime") or {}).get("paths") or {}).values()],
        "written": [*written, run.cache],
    }
