"""Whether the script of a run whose last attempt has ended may be started again."""

from __future__ import annotations

from ..diagnosis import remedy
from ..record.rundir import Run

REASON = "not-restartable"
NO_PROGRESS = "no-progress"
MAX_FRUITLESS = 2
"""A run is not started again after this many sessions, or starts of its job, in a row without progress."""
EVIDENCE = {
    "class": REASON,
    "line": "its last attempt was ended from outside",
    "why": "its script never asked worker.resume_from(), so another attempt would begin at step 1 again",
    "mend": "call worker.resume_from() to continue from its checkpoint; "
    "if it resumes from its own file, --set restart=true",
}
"""The evidence of a run whose script cannot continue."""


def without_progress(fruitless: int) -> dict[str, str]:
    """Return the evidence of a run whose last starts got no further than an earlier one."""
    return {
        "class": NO_PROGRESS,
        "why": "%d starts of its job in a row got no further than an earlier one: another start would end in the same way"
        % fruitless,
        "mend": "a longer time   --set slurm.time=…     or have the script resume, by worker.resume_from() or from its own file",
    }


def may_begin_again(run: Run) -> bool:
    """Whether another attempt may start the script.

    It may if the plan says `restart`, if the script never began, if it loaded its checkpoint, or if its
    failure has a remedy or waits for the next agent's decision.
    """
    if run.read_plan().get("restart"):
        return True
    records = run.newest_records()
    current = remedy.in_force(records)
    if current.remedy is not None or current.failure is not None:
        return True
    consumed = {knob for _, state in records for knob in state.get("consumed") or []}
    resumes = "resume" in consumed and "held resume" not in consumed
    return resumes or not any(state.get("began") for _, state in records)
