"""Native runs: processes of this host under a keeper, which restarts a dead agent and holds a lock as long as it lives."""

from __future__ import annotations

from typing import Dict, Sequence

from ..record.files import read_text
from ..record.locks import is_locked
from ..record.rundir import Run
from ..system import bearers, process
from .fate import COMING_BACK, GONE, Fate, Verdict


class Native(Fate):
    """The keeper's lock says whether it will start the agent again."""

    is_started_by_client = False

    def judge(self, runs: Sequence[Run]) -> Dict[str, Verdict]:
        """Look at each keeper's lock."""
        return {
            run.id: Verdict(COMING_BACK, words="its keeper is running")
            if is_locked(run.keeper_lock)
            else Verdict(GONE)
            for run in runs
        }

    def left(self, run: Run) -> str:
        """Name the processes that carry the run's token, and those that an earlier attempt could not end."""
        token = read_text(run.token)
        pids = {found.pid for found in bearers.with_token(token)} if token else set()
        for folder in run.newest():
            evidence = folder.read_state().get("evidence") or {}
            for recorded in evidence.get("remaining") or []:
                current = process.find(int(recorded["pid"]))
                if current is not None and current.start == recorded.get("start") and current.letter != "Z":
                    pids.add(current.pid)
        return "pid %s is still there" % ", ".join(map(str, sorted(pids))) if pids else ""


FATE = Native()
