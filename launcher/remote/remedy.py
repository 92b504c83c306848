"""What follows a failure: pure functions over what is on record.

A failure is {"class", "line", "why", "mend", "since"}: what it is called, the line that proves it, why it happens, what a
person can do, and the first step that may not be kept (None: all may). A remedy is {"class", "rung", "resume_before",
"text"}: the edit that the next attempt begins with. It touches only a knob that the script has consumed: another would
fail in the same way again.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, List, NamedTuple, Optional, Tuple

Failure = Dict[str, Any]
Remedy = Dict[str, Any]
Record = Dict[str, Any]


class Edit(NamedTuple):
    """A kind of edit: the knob that it turns (None: there is none, the run ends), and what a person does instead."""

    knob: Optional[str]
    by_hand: str


NEXT_RUNG = Edit(
    "precision",
    "let the plan choose the precision: TrainingArguments(**worker.training_arguments(...)), model = worker.prepare(model)",
)
STOP = Edit(
    None,
    "see that something is trainable (requires_grad), that the learning rate is above 0 and that labels are not all ignored",
)
TABLE = {
    "nan-divergence": NEXT_RUNG,
    "fp16-unscale": NEXT_RUNG,
    "bf16-unsupported": NEXT_RUNG,
    "bf16-dtype-mismatch": NEXT_RUNG,
    "not-learning": STOP,
}


class Verdict(NamedTuple):
    """What follows: a remedy; or, without one, the run's end, its reason, and what a person can do."""

    reason: str
    remedy: Optional[Remedy]
    mend: str


def decide(
    failure: Failure,
    *,
    ladder: List[Any],
    rung: int,
    consumed: Collection[str],
    may_begin_again: bool,
    attempts_left: int,
    checkpoint: Optional[int],
) -> Verdict:
    """Return what follows an attempt on `rung` that ended in a failure of a class of the TABLE.

    `may_begin_again` is whether the script can be started once more without doing what it did twice; `checkpoint` the
    step that it would go on from, None for the beginning.
    """
    name = failure["class"]
    edit = TABLE[name]
    if edit.knob is None or edit.knob not in consumed:
        return Verdict(name, None, failure.get("mend") or edit.by_hand)
    if rung + 1 >= len(ladder):
        here = _title(ladder[rung]) if rung < len(ladder) else "this"
        mend = "no rung is left below %s: lower the learning rate, and look at the data of that step" % here
        return Verdict(name, None, mend)
    if not may_begin_again:
        mend = "it never asked worker.resume_from(), so it is not started again by itself: ask, or restart = true in the job"
        return Verdict(name, None, mend)
    if attempts_left <= 0:
        return Verdict(
            "attempts-exhausted", None, "a larger `attempts` in the job lets the next rung be tried"
        )
    where = "from the beginning" if checkpoint is None else "resuming from step %d" % checkpoint
    words = (_title(ladder[rung]), _title(ladder[rung + 1]), rung + 2, len(ladder), where)
    text = "precision %s → %s, rung %d of %d; %s" % words
    return Verdict(
        name, {"class": name, "rung": rung + 1, "resume_before": failure.get("since"), "text": text}, ""
    )


class InForce(NamedTuple):
    """What the next attempt begins with: its rung, and the remedy that led to it, None once an attempt has begun with it.

    `failure` is that of an attempt whose agent died before it could say what follows.
    """

    rung: int
    remedy: Optional[Remedy]
    failure: Optional[Failure]


def in_force(history: List[Tuple[Record, Record]]) -> InForce:
    """Return the values in force after the attempts so far, told by (attempt.json, state.json) of each folder."""
    found = InForce(0, None, None)
    for attempt, state in history:
        if state.get("began"):
            found = InForce(int(attempt.get("rung") or 0), None, state.get("failure"))
        told = state.get("remedy")
        if told:
            found = InForce(told["rung"], told, None)
    return found


def _title(precision: Any) -> str:
    """Return a precision of the ladder in a few words."""
    if not isinstance(precision, dict):
        return str(precision)
    mode, base = precision.get("mode"), precision.get("base_dtype")
    tf32 = " with tf32" if precision.get("tf32") else ""
    return "%s%s over %s" % (mode, tf32, base) if base else "%s%s" % (mode, tf32)
