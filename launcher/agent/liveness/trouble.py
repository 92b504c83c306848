"""Why a live run makes no progress: its disk, a paused container, a frozen agent or a hung training."""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING

from ..record.files import REFUSED
from ..record.record_shape import read_heartbeat
from ..record.rundir import LIVE, RecordFolder, Run
from ..record.safe_open import open_regular, status_of
from .run_state import probe_of

if TYPE_CHECKING:
    from ..record.run_records import HeartbeatRecord, StateRecord, TroubleRecord

STILL_S = 20.0
"""Four heartbeats: an agent that has not written for this long does not run, or cannot write."""
FAR_STILL_S = 90.0
"""The same for heartbeats on a shared disk, which may show old contents for a minute."""
LATE_S = 7.0
"""One missed heartbeat. After it the disk is tried: a read-only disk accepts no heartbeats."""
MIN_ROOM = 64 * 1024
"""A file system with fewer free bytes counts as full."""
MIN_FILES = 8
SILENT = "silent"
_DOING = {
    "idle": "hung or waiting (its stacks are in the log): no output, no CPU time, no bytes",
    "busy": "silent, though its processes work: no output",
    "unseen": "silent: no output",
}
"""Descriptions of a training that has been silent for long, without steps, by its processes' activity."""
_WORDS = {
    "disk-full": "disk full, the run waits for room",
    "quota": "disk quota used up, the run waits for room",
    "read-only": "read-only file system, the run waits",
}


def trouble_of(run: Run, state: StateRecord, *, asks: bool = False) -> TroubleRecord | None:
    """Return why a live run of this place makes no progress; None if it has no trouble or none is known.

    With `asks`, try the disk and ask the container's engine at once. Otherwise try the disk after one late
    heartbeat, and ask the engine once the agent has been still for STILL_S.
    """
    run_probe = probe_of(run)
    if state.get("state") not in (*LIVE, "resuming") or not run.has_locks_here(run_probe.place_id()):
        return None
    last = run.last()
    still_s = None if last is None else _still_s(last, sees_lock=run_probe.sees_lock)
    disk = _disk_trouble(run, last, still_s, tries=asks)
    if disk is not None:
        return {"kind": disk, "what": _WORDS[disk]}
    if state.get("reason") == "disk":
        evidence = state.get("evidence") or {}
        return {"kind": "room", "what": "the run waits for room on its disk: %s" % evidence.get("disk")}
    if state["state"] not in LIVE:
        return None
    is_still = still_s is not None and still_s >= STILL_S
    if (asks or is_still) and run_probe.is_paused(run):
        return {"kind": "paused", "what": "its container is paused"}
    if not is_still:
        return _silence(last)
    return {
        "kind": "frozen",
        "what": run_probe.standstill(run) or "its agent is frozen",
        "since_s": still_s,
    }


def _silence(last: RecordFolder | None) -> TroubleRecord | None:
    """Return the agent's report of a silent training; None if it has none."""
    if last is None:
        return None
    try:
        beat = _beat_in(last.heartbeat, status_of(last.heartbeat).st_mtime_ns)
    except OSError:
        return None
    what = _DOING.get(beat.get("doing") or "")
    silent_s = beat.get("silent_s")
    return None if what is None or silent_s is None else {"kind": SILENT, "what": what, "since_s": silent_s}


def _disk_trouble(run: Run, last: RecordFolder | None, still_s: float | None, *, tries: bool) -> str | None:
    """Return why the disk of a run refuses writes: by its figures, a write test, or its agent's report."""
    if _is_full(run.record):
        return "disk-full"
    is_late = still_s is None or still_s > LATE_S
    if (tries or is_late) and _is_read_only(run):
        return "read-only"
    if last is None or is_late:
        return None
    try:
        refused = _beat_in(last.heartbeat, status_of(last.heartbeat).st_mtime_ns).get("refused")
    except OSError:
        return None
    return refused if refused in _WORDS else None


def _is_full(path: str) -> bool:
    """Whether a disk is full by its own figures.

    For root, the figure includes the last 16 MB of an ext4 file system, which no process can use.
    """
    status = os.statvfs(path)
    is_root = os.geteuid() == 0
    blocks = status.f_bfree if is_root else status.f_bavail
    files = status.f_ffree if is_root else status.f_favail
    return blocks * status.f_frsize < MIN_ROOM or (status.f_files > 0 and files < MIN_FILES)


def _is_read_only(run: Run) -> bool:
    """Whether a file of the run cannot be opened for writing.

    statvfs does not show that an error has made a file system read-only.
    """
    try:
        os.close(open_regular(run.wish, os.O_WRONLY))
    except OSError as error:
        return REFUSED.get(error.errno or 0) == "read-only"
    return False


@functools.lru_cache(maxsize=256)
def _beat_in(heartbeat: str, _changed: int) -> HeartbeatRecord:
    """Return a heartbeat. The file is written in place, so its modification time is part of the cache key."""
    return read_heartbeat(heartbeat)


def _still_s(last: RecordFolder, *, sees_lock: bool) -> float | None:
    """Return the age of the last heartbeat in seconds; None if there is no reason to suspect the agent.

    The age is measured by two clocks, and the lesser value counts, since one clock may have jumped. The
    heartbeat of an agent on another machine is seen late, and its time is by that machine's clock.
    """
    try:
        age_s = time.time() - status_of(last.heartbeat).st_mtime
    except FileNotFoundError:
        return None
    if age_s < LATE_S:  # the usual case: a follower's poll needs two stat calls
        return age_s
    if not sees_lock:
        return age_s if age_s > FAR_STILL_S else None
    if not last.is_locked():
        return None
    written_s = last.read_heartbeat().get("monotonic_s")
    return min(age_s, time.monotonic() - written_s) if isinstance(written_s, float) else age_s
