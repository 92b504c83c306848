"""Runs in a service that no agent of ours can look into: the client records what the service says, and that decides.

The run's folder here is a spool, a copy that grows from what the run sends. The locks in it are never held by the run.
"""

from __future__ import annotations

from typing import Dict, Sequence

from ..record.files import read_json
from ..record.rundir import Run
from .fate import ALIVE, GONE, SILENT, Fate, Verdict

_FATES = {"sent": ALIVE, "queued": ALIVE, "running": ALIVE, "over": GONE, "deleted": GONE}
"""The fate of a session by its status in `service.json`; with any other, the service knows nothing of it for now."""


class Spooled(Fate):
    """What the client last heard from the service: `control/service.json`, written before a session is asked for.

    {"version", "ref", "segment", "status", "words", "time"}; `words` say what the service said, in one clause.
    """

    shows_processes = False
    sees_host = False
    sees_lock = False

    def judge(self, runs: Sequence[Run]) -> Dict[str, Verdict]:
        """Read each run's record of its session. Without a record the run is in doubt: it may have been sent."""
        return {run.id: _verdict(run) for run in runs}


def _verdict(run: Run) -> Verdict:
    record = read_json(run.service)
    status = str(record.get("status") or "unknown")
    words = str(record.get("words") or "its session is %s" % status)
    fate = _FATES.get(status, SILENT)
    return Verdict(fate, None if fate == ALIVE else {"service": words}, words)
