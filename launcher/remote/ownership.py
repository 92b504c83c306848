"""Whose a process is: of a run of ours that lives, of one that is over, or a stranger's."""

from __future__ import annotations

import os
from typing import Dict, NamedTuple, Optional, Sequence

from . import process, reading
from .rundir import RUN_ID, TERMINAL, Run, read_text

OURS_LIVE = "ours-live"
OURS_LEFTOVER = "ours-leftover"
STRANGER = "stranger"


class Owned(NamedTuple):
    """Whose a process is: `ours-live`, `ours-leftover` or `stranger`, and the run's id where it is ours."""

    kind: str
    run: Optional[str]


def judge(root: str, pids: Sequence[int]) -> Dict[int, Owned]:
    """Return whose each process is, by the token of a run below `root` in its environment; no proof, no ownership.

    A record that was made on another host proves nothing here.
    """
    tokens = {pid: _token(pid) for pid in pids}
    runs = _runs(root) if any(tokens.values()) else {}
    kinds: Dict[str, Owned] = {}
    found = {}
    for pid, token in tokens.items():
        run = runs.get(token or "")
        if run is not None and run.id not in kinds:
            kinds[run.id] = _of(run)
        found[pid] = kinds[run.id] if run is not None else Owned(STRANGER, None)
    return found


def _token(pid: int) -> Optional[str]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:  # another user's, or gone
        return None
    mark = b"LAUNCH_TOKEN="
    return next((os.fsdecode(one[len(mark) :]) for one in variables if one.startswith(mark)), None)


def _runs(root: str) -> Dict[str, Run]:
    """Return the runs below a root by their tokens."""
    folder = os.path.join(root, "runs")
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    runs = [Run(os.path.join(folder, name)) for name in names if RUN_ID.fullmatch(name)]
    return {token: run for token, run in ((read_text(run.token), run) for run in runs) if token}


def _of(run: Run) -> Owned:
    if reading.host_of(run) != process.host_id():
        return Owned(STRANGER, None)
    state = reading.state_of(run)["state"]
    return Owned(OURS_LEFTOVER if state in (*TERMINAL, "interrupted") else OURS_LIVE, run.id)
