"""What becomes of a run that toy_runtime.py started: its spooler's file and pid say it."""

from __future__ import annotations

import os
from typing import Dict, Sequence

from ...record.files import read_text
from ...record.rundir import Run
from ..liveness import COMING_BACK, GONE, LivenessProbe, RunLiveness


class Toy(LivenessProbe):
    """A run comes back as long as its spooler lives."""

    def judge(self, runs: Sequence[Run]) -> Dict[str, RunLiveness]:
        """Look for each run's spooler."""
        return {run.id: _verdict(run) for run in runs}


def _verdict(run: Run) -> RunLiveness:
    pid = (read_text(os.path.join(os.path.expanduser("~"), ".launch-toy", run.id)) or "").strip()
    if pid and os.path.exists("/proc/%s" % pid):
        return RunLiveness(COMING_BACK, words="its spooler, pid %s, is running" % pid)
    return RunLiveness(GONE, {"spooler": "gone"})


PROBE = Toy()
