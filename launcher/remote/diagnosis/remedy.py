"""What follows a failure: pure functions over what is on record.

A failure is {"class", "line", "why", "mend", "since"}: what it is called, the line that proves it, why it happens, what a
person can do, and the first step that may not be kept (None: all may). A remedy is {"class", "changes", "resume_before",
"text"}: the edit that the next attempt begins with. It touches only a knob that the script has consumed: another would
fail in the same way again.
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional, Tuple

Failure = Dict[str, Any]
Remedy = Dict[str, Any]
Record = Dict[str, Any]
Changes = Dict[str, Any]
Change = Tuple[Changes, str]


class Case(NamedTuple):
    """A failure, and what its remedy hangs on.

    `changes` are those in force, over the plan's values. `may_begin_again` is whether the script can be started once more
    without doing what it did twice; `checkpoint` the step that it would go on from, None for the beginning; `tries` how
    many earlier attempts failed of the same class without a checkpoint since.
    """

    failure: Failure
    plan: Record
    changes: Changes
    consumed: Collection[str]
    may_begin_again: bool
    attempts_left: int
    checkpoint: Optional[int]
    tries: int
    is_in_container: bool = False


# the edits: each gives the change and how it is told, or None where there is none left


def _next_rung(case: Case) -> Optional[Change]:
    ladder = case.plan.get("ladder") or [None]
    rung = int(case.changes.get("rung", 0))
    if rung + 1 >= len(ladder):
        return None
    words = (_title(ladder[rung]), _title(ladder[rung + 1]), rung + 2, len(ladder))
    return {"rung": rung + 1}, "precision %s → %s, rung %d of %d" % words


def _less_memory(case: Case) -> Optional[Change]:
    """Halve the micro-batch; at one, compute activations anew. Where others hold the card neither would help."""
    if case.failure.get("others"):
        return None
    split = case.plan.get("split") or {}
    micro = int(case.changes.get("micro_batch") or split.get("micro_batch") or 1)
    accumulation = int(case.changes.get("accumulation") or split.get("accumulation") or 1)
    if micro > 1:
        if "split" not in case.consumed:
            return None
        product = micro * accumulation
        smaller = next(size for size in range(micro // 2, 0, -1) if product % size == 0)
        words = (micro, smaller, accumulation, product // smaller, split.get("global_batch", product))
        text = "micro-batch %d → %d, accumulation %d → %d (global batch stays %d)" % words
        return {"micro_batch": smaller, "accumulation": product // smaller}, text
    if case.changes.get("activation_checkpointing") or "activation_checkpointing" not in case.consumed:
        return None
    return {"activation_checkpointing": True}, "activation checkpointing on"


def _fewer_loaders(case: Case) -> Optional[Change]:
    workers = int(case.changes.get("loader_workers", case.plan.get("loader_workers")) or 0)
    if workers < 1:
        return None
    return {"loader_workers": workers // 2}, "loader workers %d → %d" % (workers, workers // 2)


def _the_one_before(case: Case) -> Optional[Change]:
    return (
        None
        if case.failure.get("since") is None
        else ({}, "the checkpoint that could not be read is set aside")
    )


def _with_room(case: Case) -> Optional[Change]:
    if case.failure.get("elsewhere"):
        return None
    return {"keep_checkpoints": 1}, "old checkpoints of this run are removed, and one is kept"


def _new_container(case: Case) -> Optional[Change]:
    return ({}, "the container is started anew") if case.is_in_container else None


def _free_card(case: Case) -> Optional[Change]:
    """Wait for whoever holds the card; where nobody does, its own script opened it twice, or somebody has just left."""
    is_ours = case.tries > 0 and not case.failure.get("others")
    return None if is_ours else ({}, "on a card that nobody holds, once there is one")


class Edit(NamedTuple):
    """A kind of edit. `most`: how often running, without a checkpoint in between (None: while it finds a change)."""

    find: Callable[[Case], Optional[Change]]
    knob: Optional[str] = None  # that the script must have consumed
    most: Optional[int] = None
    by_hand: str = ""  # where the knob is not ours to turn
    at_last: str = ""  # where no change is left


_RUNG = Edit(
    _next_rung,
    knob="precision",
    by_hand="let the plan choose the precision: TrainingArguments(**worker.training_arguments(...)), model = worker.prepare(model)",
    at_last="no rung is left below %s: lower the learning rate, and look at the data of that step",
)


def _again(text: str, most: int) -> Edit:
    return Edit(lambda _case: ({}, text), most=most)


TABLE = {
    "nan-divergence": _RUNG,
    "not-learning": Edit(
        lambda _case: None,
        at_last="see that something is trainable (requires_grad), that the learning rate is above 0 and that labels are not all ignored",
    ),
    "fp16-unscale": _RUNG,
    "bf16-unsupported": _RUNG,
    "bf16-dtype-mismatch": _RUNG,
    "cuda-oom": Edit(
        _less_memory,
        by_hand="let the plan choose the batch: TrainingArguments(**worker.training_arguments(...)), or read worker.knobs().split",
    ),
    "host-oom-killed": Edit(
        _fewer_loaders,
        knob="loaders",
        by_hand="fewer loader workers, or more memory: worker.knobs().loader_workers lets the next attempt have fewer",
        at_last="there is no loader worker left to do without: more memory for the host or the container",
    ),
    "gpu-busy-exclusive": Edit(
        _free_card,
        most=5,
        at_last="nobody else held the card: let no second process of the script open it (a parent beside its child, a loader's worker)",
    ),
    "port-in-use": _again("on another port", most=3),
    "nccl-error": _again("once more", most=1),
    "disk-full": Edit(
        _with_room,
        most=1,
        at_last="there is room for checkpoints: make some where the line says that there is none",
    ),
    "checkpoint-corrupt": Edit(_the_one_before, knob="resume", most=2),
    "no-gpu-in-container": Edit(_new_container, most=1),
    "preempted": _again("once more", most=5),
    "hang": _again("once more", most=1),
    "unknown": _again("once more", most=1),
}
"""The classes that have a remedy; a failure of any other ends the run."""


def preempted(number: int) -> Failure:
    """Return the failure of a command that somebody ended by a signal."""
    return {
        "class": "preempted",
        "why": "it was ended from outside, by signal %d, and the kernel ended nothing for want of memory"
        % number,
        "mend": "see who ends processes here: a scheduler, another user, a person",
    }


class Verdict(NamedTuple):
    """What follows: a remedy; or, without one, the run's end, its reason, and what a person can do."""

    reason: str
    remedy: Optional[Remedy]
    mend: str


def decide(case: Case) -> Verdict:
    """Return what follows an attempt that ended in a failure."""
    failure = case.failure
    name, mend = failure["class"], failure.get("mend") or ""
    reason = failure.get("reason") or name
    edit = TABLE.get(name)
    if edit is None:
        return Verdict(reason, None, mend)
    if edit.knob is not None and edit.knob not in case.consumed:
        return Verdict(reason, None, mend or edit.by_hand)
    found = edit.find(case)
    if found is None:
        at_last = edit.at_last % _title_in_force(case) if "%s" in edit.at_last else edit.at_last
        return Verdict(reason, None, at_last or failure.get("others") or mend or edit.by_hand)
    if edit.most is not None and case.tries >= edit.most:
        return Verdict(reason, None, mend)
    # Nothing is done twice where the script has asked us for its values, and had not trained a step.
    is_untouched = bool(case.consumed) and failure.get("trained") is False and name != "unknown"
    if not case.may_begin_again and not is_untouched:
        ask = "it never asked worker.resume_from(), so it is not started again by itself: ask, or restart = true in the job"
        return Verdict(reason, None, "%s; %s" % (mend, ask) if mend else ask)
    if case.attempts_left <= 0:
        return Verdict("attempts-exhausted", None, "a larger `attempts` in the job lets the next one begin")
    changes, words = found
    where = "from the beginning" if case.checkpoint is None else "resuming from step %d" % case.checkpoint
    text = "%s; %s" % (words, where)
    told = {"class": name, "changes": changes, "resume_before": failure.get("since"), "text": text}
    return Verdict(reason, told, "")


class InForce(NamedTuple):
    """What the next attempt begins with: its changes to the plan's values, and the remedy that led to it.

    The remedy is None once an attempt has begun with it. `failure` is that of an attempt whose agent died before it could
    say what follows.
    """

    changes: Changes
    remedy: Optional[Remedy]
    failure: Optional[Failure]


def in_force(history: List[Tuple[Record, Record]]) -> InForce:
    """Return the values in force after the attempts so far, told by (attempt.json, state.json) of each folder.

    The first folder of a run that continues another one tells that one's changes.
    """
    found = InForce({}, None, None)
    for attempt, state in history:
        if attempt.get("kind") == "prepare" or state.get("began"):
            found = InForce(_changes(attempt), None, state.get("failure"))
        told = state.get("remedy")
        if told:
            found = InForce({**found.changes, **_changes(told)}, told, None)
    return found


def _changes(record: Record) -> Changes:
    """Return the changes that a record tells; one of an older agent has a rung alone."""
    told = record.get("changes")
    if isinstance(told, dict):
        return dict(told)
    return {"rung": record["rung"]} if record.get("rung") else {}


def tries(history: List[Tuple[Record, Record]], name: str, checkpoint: Optional[int]) -> int:
    """Return how many attempts of a history failed of a class since the newest checkpoint was saved."""
    since = -1 if checkpoint is None else checkpoint
    failed = [state for _, state in history if (state.get("failure") or {}).get("class") == name]
    return sum((-1 if state.get("checkpoint") is None else state["checkpoint"]) >= since for state in failed)


def _title_in_force(case: Case) -> str:
    ladder = case.plan.get("ladder") or [None]
    rung = int(case.changes.get("rung", 0))
    return _title(ladder[rung]) if rung < len(ladder) else "this"


def _title(precision: Any) -> str:
    """Return a precision of the ladder in a few words."""
    if not isinstance(precision, dict):
        return str(precision)
    mode, base = precision.get("mode"), precision.get("base_dtype")
    tf32 = " with tf32" if precision.get("tf32") else ""
    return "%s%s over %s" % (mode, tf32, base) if base else "%s%s" % (mode, tf32)
