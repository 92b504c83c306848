"""What keeps a live run from going on: a full disk, a paused container, an agent that does not move."""

from __future__ import annotations

import os
import time
from typing import Any

from ..record.rundir import Run
from ..record.safe_open import status_of
from ..system import process
from .run_state import State, fate_of

STILL_S = 20.0
"""Four heartbeats: an agent that has not written for so long does not run, or cannot write."""
LEAST_ROOM = 64 * 1024
"""Bytes free, below which a file system counts as full."""
_LIVE = ("preparing", "running", "stopping")


def trouble_of(run: Run, state: State) -> dict[str, Any] | None:
    """Return what keeps a live run of this place from going on, as a `Trouble`; None if nothing does, or nobody can tell."""
    if state.get("state") not in _LIVE or not run.has_locks_here(process.host_id()):
        return None
    if _free_bytes(run.record) < LEAST_ROOM:
        return {"what": "the disk is full, the run waits for room"}
    still_s = _still_s(run)
    if still_s is None or still_s < STILL_S:
        return None
    return {"what": fate_of(run).standstill(run) or "its agent is frozen", "since_s": still_s}


def _free_bytes(path: str) -> int:
    status = os.statvfs(path)
    blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail
    return blocks * status.f_frsize


def _still_s(run: Run) -> float | None:
    """Return how long ago the last heartbeat was written, by both clocks, since one of them may have jumped; None if just now."""
    last = run.last()
    if last is None:
        return None
    try:
        age_s = time.time() - status_of(last.heartbeat).st_mtime
    except FileNotFoundError:
        return None
    if age_s < STILL_S or not last.is_locked():  # the usual case costs a follower's poll one stat
        return None
    written_s = last.read_heartbeat().get("monotonic_s")
    return min(age_s, time.monotonic() - written_s) if isinstance(written_s, float) else age_s
