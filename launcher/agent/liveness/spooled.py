"""Runs in a service that our agents cannot inspect: the client records the service's answers.

The run's folder here is a spool: a copy that grows from the output of the run. The run never holds the locks
in it.
"""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple

from ..record.files import read_json
from ..record.rundir import WISHES, Run
from ..record.strict_json import JsonObject
from . import restartable
from .liveness import ALIVE, GONE, SILENT, LivenessProbe, RunLiveness

_LIVENESS = {
    **dict.fromkeys(("waiting", "sent", "queued", "running", "ended"), ALIVE),
    **dict.fromkeys(("over", "home", "gone", "deleted", "none"), GONE),
}
"""The verdict by a session's status in `service.json`. Any other status means SILENT."""

_WORDS = {
    **dict.fromkeys(("sent", "queued"), "its session waits for a machine"),
    "unsettled": "the push of its session has no answer yet",
    "none": "it has no session",
}


class Spooled(LivenessProbe):
    """The service's last answer to the client: `control/service.json`, written before a session is requested.

    {"version", "ref", "segment", "status", "words", "time"}; `words` is the service's answer in one clause.
    """

    shows_processes = False
    sees_host = False
    sees_lock = False

    def judge(self, runs: Sequence[Run]) -> Dict[str, RunLiveness]:
        """Read the record of each run's session.

        The record is written before a session is requested: without a record no session exists.
        """
        return {run.id: _verdict(run) for run in runs}

    def hopeless(self, run: Run) -> Optional[Tuple[str, str, JsonObject]]:
        """Return state, reason and evidence of a run that no other session could continue.

        That is a run whose session was deleted, which is how a user stops a run in a service; a run whose script
        cannot start again; or a run whose last sessions left no checkpoint, so that another would not either.
        """
        record = read_json(run.service)
        fruitless = int(record.get("fruitless") or 0)
        if record.get("status") == "deleted":
            words = str(record.get("words") or "its session was deleted")
            return "stopped", str(WISHES["stop"]), {"service": words}
        line = str(record.get("words") or "its session is over")
        if not restartable.may_begin_again(run):
            evidence = {
                "class": restartable.REASON,
                "line": line,
                "why": "its script never asked worker.resume_from(), so another session would begin at step 1 again",
                "mend": "call worker.resume_from() to continue in the next session, or set `restart = true` to start again",
            }
            return "failed", restartable.REASON, evidence
        if fruitless < restartable.MAX_FRUITLESS:
            return None
        evidence = {
            "class": restartable.NO_PROGRESS,
            "line": line,
            "why": "%d sessions in a row left no new checkpoint: another session would end in the same way"
            % fruitless,
            "mend": "the log shows why; to save within a session, use worker.due or `save_every_minutes`",
        }
        return "failed", restartable.NO_PROGRESS, evidence


def _verdict(run: Run) -> RunLiveness:
    record = read_json(run.service)
    status = str(record.get("status") or "none")
    said = record.get("words") or _WORDS.get(status)
    words = str(said or "its session is %s" % status)
    liveness = _LIVENESS.get(status, SILENT)
    evidence = {"service": words} if said or liveness != ALIVE else None
    return RunLiveness(liveness, evidence, words, "reserved" if status == "waiting" else "")
