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


def max_fruitless(*, resumes: bool) -> int:
    """Return how many starts of a job in a row may get no further; one if the script is not known to resume."""
    return MAX_FRUITLESS if resumes else 1


def without_progress(fruitless: int, node_s: float) -> dict[str, str]:
    """Return the evidence of a run whose last starts got no further than an earlier one.

    `node_s` are the seconds that it has used, summed over its nodes.
    """
    starts = "a start of its job" if fruitless == 1 else "%d starts of its job in a row" % fruitless
    return {
        "class": NO_PROGRESS,
        "why": "%s got no further than an earlier one, or began anew, and another would end in the same way; the run has used %s"
        % (starts, _node_time(node_s)),
        "mend": "a longer time   --set slurm.time=…     or have the script resume, by worker.resume_from() or from its own file",
    }


def _node_time(node_s: float) -> str:
    hours = node_s / 3600
    minutes = max(1, round(node_s / 60))
    return "%.1f node hours" % hours if hours >= 1 else "%d node minute%s" % (minutes, "s" * (minutes != 1))


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
