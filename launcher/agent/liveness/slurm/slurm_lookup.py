"""The controller's record of jobs that its queue does not list, from `scontrol`, one job at a time.

The queue's answer may lack a running job, if it is late or if a site's own program gives it. So a job missing
from the queue has not necessarily ended: the controller must report its end, or not know its number.
"""

from __future__ import annotations

import time
from typing import Dict, NamedTuple, Optional, Tuple

from ...record.rundir import Run
from . import slurm_jobs
from .slurm_jobs import SlurmJob
from .slurm_programs import SlurmSilentError, ask

ANSWER_S = 3.0
AGAIN_S = 5.0
"""Seconds until the controller is asked again about a job that has not ended, or after it gave no answer."""
_UNKNOWN = "Invalid job id specified"


class JobLookup:
    """Cached answers about jobs. The end of a job is final, and so is the answer that its number is unknown."""

    def __init__(self) -> None:
        """Start without answers."""
        self._answers: Dict[Tuple[str, str], _ControllerAnswer] = {}
        self._silent_until_s = 0.0
        self._why = ""

    def find(self, run: Run, job: str) -> Optional[SlurmJob]:
        """Return the job of a run by its number; None if the controller has no such job of this run.

        Raises SlurmSilentError.
        """
        now = time.monotonic()
        looked = self._answers.get((run.id, job))
        if looked is None or looked.is_due(now):
            self._answers.pop((run.id, job), None)
            looked = self._answers[run.id, job] = _ControllerAnswer(self._ask(run, job, now), now)
        return looked.job

    def forget(self) -> None:
        """Ask for each job again."""
        self._answers.clear()
        self._silent_until_s = 0.0

    def _ask(self, run: Run, job: str, now: float) -> Optional[SlurmJob]:
        if now < self._silent_until_s:
            raise SlurmSilentError(self._why)
        try:
            return shown(run, job)
        except SlurmSilentError as error:  # many runs would wait for the same missing answer
            self._silent_until_s, self._why = time.monotonic() + AGAIN_S, str(error)
            raise


class _ControllerAnswer(NamedTuple):
    """A job as the controller reported it, None if it knew none, and the time of the answer."""

    job: Optional[SlurmJob]
    when_s: float

    def is_due(self, now_s: float) -> bool:
        """Whether to ask again."""
        is_final = self.job is None or slurm_jobs.has_ended(self.job)
        return not is_final and now_s - self.when_s > AGAIN_S


def shown(run: Run, job: str) -> Optional[SlurmJob]:
    """Return the job of a run by its number, asked now; None if the controller has no such job of this run.

    Raises SlurmSilentError.
    """
    answer = ask([*slurm_jobs.SHOW, job], ANSWER_S)
    if answer.code != 0 and _UNKNOWN in answer.said:
        return None
    found = slurm_jobs.parse_shown(answer.text) if answer.code == 0 else None
    if found is None:
        said = answer.said.strip().splitlines()[-1:] or ["it prints nothing about job %s" % job]
        raise SlurmSilentError("scontrol show job: %s" % said[0][:200])
    is_ours = found.run_id == run.id or slurm_jobs.is_shown_of(answer.text, run.id, run.path)
    return found if is_ours else None
