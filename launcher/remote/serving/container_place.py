"""What a container of a run needs to see of this host."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict

from ..cards import lease
from ..host.probe_host import user
from ..record.rundir import Run
from ..system import process
from .session import Session


def container_place(session: Session, run: Run) -> Dict[str, Any]:
    """Return the paths that a container of a run reads and writes, made if missing, and the user it runs as."""
    agent = os.path.abspath(sys.argv[0])
    record = run.prepared()
    agent_folder = record.get("agent_folder") or os.path.dirname(agent)
    data = os.path.join(session.store.path, "data")
    evidence, leases = run.evidence(process.host_id()), lease.folder_of(session.root)
    for folder in (run.cache, data, evidence, leases):
        os.makedirs(folder, exist_ok=True)
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
        "read": [agent_folder, data, *((record.get("runtime") or {}).get("paths") or {}).values()],
        "written": [run.cache, evidence, leases],
    }
