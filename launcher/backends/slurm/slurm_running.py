"""Runs on a cluster: diagnoses of jobs that Slurm ended, cancelled or could not start."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.backends.base.running import Running
from launcher.errors import BadFileError
from launcher.transport.log_diagnosis import Diagnosis
from launcher.values.record import Reason, RunState, State
from launcher.values.slurm_settings import SlurmSettings

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy

UNMET = "the job that it waited for"
"""The agent's words for a job that Slurm cancelled because the one before it did not end as asked."""
_TIMEOUT = re.compile(r"\bTIMEOUT\b")
"""Slurm's word for a job whose time limit was reached."""


class SlurmRunning(Running):
    """The running part for a cluster."""

    def service_diagnosis(
        self, local_copy: LocalCopy, state: RunState, said: str | None, last_reason: Callable[[], object]
    ) -> Diagnosis | None:
        """Return why a run waits for a new job, was cancelled in Slurm, or never began.

        Return None for any other run.
        """
        short = local_copy.short
        if state.state == State.WAITING and state.reason == Reason.CLIENT and said:
            is_time_up = _TIMEOUT.search(said) or last_reason() == Reason.SESSION_LIMIT
            why = f"{'its limit of time was reached' if is_time_up else 'Slurm has ended its job for good'}: {said}"
            from_step = "" if state.checkpoint is None else f", which continues from step {state.checkpoint}"
            mend = f"launch recover {short}     submits a new job{from_step}"
            return Diagnosis(Reason.ENDED_BY_SLURM, None, None, why, mend)
        if state.state == State.STOPPED and state.reason == Reason.CANCELLED_IN_SLURM:
            why = f"its job was cancelled in Slurm, as by scancel{f': {said}' if said else ''}"
            if said is not None and UNMET in said:
                why = f"Slurm has ended it before its start: {said}"
            again = f"launch rerun {short}     starts it again"
            if state.checkpoint is not None:
                again = f"launch resume {short}     continues from step {state.checkpoint}"
            return Diagnosis(Reason.CANCELLED_IN_SLURM, None, None, why, again)
        if state.state == State.FAILED and state.reason == Reason.NEVER_STARTED and said:
            return Diagnosis(
                Reason.NEVER_STARTED,
                None,
                None,
                f"Slurm could not begin it: {said}",
                _begin_again(local_copy, said),
            )
        return None


def _begin_again(local_copy: LocalCopy, said: str) -> str:
    """Return the next step for a job that could not begin, with the place of its log on the cluster, if it has one."""
    host = local_copy.host()
    again = f"change its cause, such as `extra` or `modules`   launch rerun {local_copy.short}{_without(local_copy)}"
    if "its log ends" not in said:
        return (
            f"{again}\n"
            f"can a node give what `extra` asks for?   launch probe --host {host.name}\n"
            "does each node see `root`, and may it write there?"
        )
    log = host.by_hand(shlex.join(["cat", f"{host.root}/runs/{local_copy.run}/record/slurm.log"]))
    return f"{again}\nits log   {log}"


def _without(local_copy: LocalCopy) -> str:
    """Return the options of a rerun that leave out the modules and the extra flags of a run."""
    try:
        asked = local_copy.whole_plan().slurm
    except BadFileError:
        return ""
    if asked is None:
        return ""
    given = {"modules": asked.modules, "extra": SlurmSettings.from_flags(asked.flags).extra}
    return "".join(f" --set 'slurm.{key}=[]'" for key, values in given.items() if values)
