"""Decide what follows a failed attempt: a remedy for the next attempt, or the end of the run.

These are pure functions over records. A remedy is a set of changes to the plan's values for the next attempt.
For example, after `cuda-oom` it is {"micro_batch": 4, "accumulation": 16}. A remedy changes only knobs that
the script has consumed, that is, values that the script takes from launcher. Any other change would have no
effect, and the attempt would fail in the same way again.
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Collection,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    cast,
)

if TYPE_CHECKING:
    from ..record.run_records import (
        AttemptRecord,
        ChangesRecord,
        FailureRecord,
        PlanRecord,
        PrecisionRecord,
        RemedyRecord,
        StateRecord,
    )


Change = Tuple["ChangesRecord", str]


class AttemptFailure(NamedTuple):
    """Why an attempt failed: the class, the line that proves it, the reason in words, and the advice.

    `since` is the first step whose checkpoints must not be used, None if all may be. `reason` replaces the
    class as the run's reason. `others` names the other processes that use the card. `is_elsewhere` means that
    the full disk does not hold the checkpoints. If it holds them, `needs` is the number of bytes that
    must be free for the next checkpoint, None if no room can be expected. `step` is the last step before the
    failure; `has_trained` is whether the attempt made any step.
    """

    name: str
    line: Optional[str] = None
    why: Optional[str] = None
    mend: Optional[str] = None
    since: Optional[int] = None
    reason: Optional[str] = None
    others: Optional[str] = None
    is_elsewhere: Optional[bool] = None
    needs: Optional[int] = None
    step: Optional[int] = None
    has_trained: Optional[bool] = None

    def evidence(self) -> FailureRecord:
        """Return class, line and reason: the failure as the evidence of the attempt's end."""
        return {"class": self.name, "line": self.line, "why": self.why}

    def record(self) -> FailureRecord:
        """Return the failure as `state.json` holds it."""
        optional = {
            "mend": self.mend,
            "reason": self.reason,
            "others": self.others,
            "elsewhere": self.is_elsewhere,
            "needs": self.needs,
        }
        known = {name: value for name, value in optional.items() if value is not None}
        record = {
            **self.evidence(),
            "since": self.since,
            **known,
            "step": self.step,
            "trained": self.has_trained,
        }
        return cast("FailureRecord", record)


def read_failure(record: Any) -> Optional[AttemptFailure]:
    """Return the failure in a record; None if it holds none."""
    if not isinstance(record, dict) or not isinstance(record.get("class"), str):
        return None
    return AttemptFailure(
        name=record["class"],
        line=record.get("line"),
        why=record.get("why"),
        mend=record.get("mend"),
        since=record.get("since"),
        reason=record.get("reason"),
        others=record.get("others"),
        is_elsewhere=record.get("elsewhere"),
        needs=record.get("needs"),
        step=record.get("step"),
        has_trained=record.get("trained"),
    )


class Remedy(NamedTuple):
    """The next attempt's changes, and the first step that it must not resume from (None if it may resume from any)."""

    name: str
    changes: ChangesRecord
    resume_before: Optional[int]
    text: str

    def record(self) -> RemedyRecord:
        """Return the remedy as `state.json` and `attempt.json` hold it."""
        return {
            "class": self.name,
            "changes": self.changes,
            "resume_before": self.resume_before,
            "text": self.text,
        }


def read_remedy(record: Any) -> Optional[Remedy]:
    """Return the remedy in a record; None if it holds none."""
    if not isinstance(record, dict) or not record:
        return None
    return Remedy(
        str(record.get("class") or ""),
        _changes(record),
        record.get("resume_before"),
        str(record.get("text") or ""),
    )


class FailedAttempt(NamedTuple):
    """A failure, and all inputs of the decision about its remedy.

    `changes` are the changes to the plan that this attempt ran with. `may_begin_again` is whether the
    script can be started again without repeating finished work. `checkpoint` is the step that it would resume
    from, None for the beginning. `tries` counts the earlier attempts that failed with the same class since
    the newest checkpoint.
    """

    failure: AttemptFailure
    plan: PlanRecord
    changes: ChangesRecord
    consumed: Collection[str]
    may_begin_again: bool
    attempts_left: int
    checkpoint: Optional[int]
    tries: int
    is_in_container: bool = False


# the edits: each returns the changes and their description, or None if no change is left


def _next_rung(attempt: FailedAttempt) -> Optional[Change]:
    """Take the next rung of the ladder, and resume from before the first bad step if that is known."""
    ladder: Sequence[Optional[PrecisionRecord]] = attempt.plan.get("ladder") or [None]
    rung = int(attempt.changes.get("rung", 0))
    if rung + 1 >= len(ladder):
        return None
    words = (_title(ladder[rung]), _title(ladder[rung + 1]), rung + 2, len(ladder))
    return {"rung": rung + 1}, "precision %s → %s, rung %d of %d" % words


def _less_memory(attempt: FailedAttempt) -> Optional[Change]:
    """Halve the micro-batch and double the accumulation; at 1, turn on activation checkpointing.

    It changes nothing if other processes fill the card.
    """
    if attempt.failure.others:
        return None
    split = attempt.plan.get("split") or {}
    micro = int(attempt.changes.get("micro_batch") or split.get("micro_batch") or 1)
    accumulation = int(attempt.changes.get("accumulation") or split.get("accumulation") or 1)
    if micro > 1:
        if "split" not in attempt.consumed:
            return None
        product = micro * accumulation
        smaller = next(size for size in range(micro // 2, 0, -1) if product % size == 0)
        words = (micro, smaller, accumulation, product // smaller, split.get("global_batch", product))
        text = "micro-batch %d → %d, accumulation %d → %d (global batch stays %d)" % words
        return {"micro_batch": smaller, "accumulation": product // smaller}, text
    is_on = attempt.changes.get("activation_checkpointing") or attempt.plan.get("checkpointing")
    if is_on or "activation_checkpointing" not in attempt.consumed:
        return None
    return {"activation_checkpointing": True}, "activation checkpointing on"


def _fewer_loaders(attempt: FailedAttempt) -> Optional[Change]:
    """Halve the loader workers."""
    workers = int(attempt.changes.get("loader_workers", attempt.plan.get("loader_workers")) or 0)
    if workers < 1:
        return None
    return {"loader_workers": workers // 2}, "loader workers %d → %d" % (workers, workers // 2)


def _earlier_checkpoint(attempt: FailedAttempt) -> Optional[Change]:
    """Set the damaged checkpoint aside, and resume from the one before."""
    return (
        None if attempt.failure.since is None else ({}, "the checkpoint that could not be read is set aside")
    )


def _fewer_checkpoints(attempt: FailedAttempt) -> Optional[Change]:
    """Remove old checkpoints of the run, keep only one from then on, and wait for room on the disk.

    A wait does not count towards the limit of `most`.
    """
    if attempt.failure.is_elsewhere:
        return None
    if attempt.changes.get("keep_checkpoints") == 1 or attempt.plan.get("keep_checkpoints") == 0:
        return {}, "as soon as there is room for a checkpoint"
    return {"keep_checkpoints": 1}, "old checkpoints of this run are removed; from now on only one is kept"


def _new_container(attempt: FailedAttempt) -> Optional[Change]:
    """Start a new container."""
    return ({}, "in a new container") if attempt.is_in_container else None


def _free_card(attempt: FailedAttempt) -> Optional[Change]:
    """Take another free card of the same kind, or wait until the same one is free.

    If no other process was seen on the card, try once more: the process may have just left. If that attempt
    fails too, the script itself must have opened the card twice.
    """
    is_own_fault = attempt.tries > 0 and not attempt.failure.others
    return None if is_own_fault else ({}, "as soon as a card is free")


class Edit(NamedTuple):
    """A kind of edit.

    `most` is how often it may be made without a new checkpoint; None if `find` itself sets a limit. `alone` is the
    advice for a script that takes nothing from the worker.
    """

    find: Callable[[FailedAttempt], Optional[Change]]
    knob: Optional[str] = None  # the script must have consumed it
    most: Optional[int] = None
    by_hand: str = ""  # advice if the script does not take the knob from launcher
    at_last: str = ""  # advice if no change is left
    alone: str = ""


_RUNG = Edit(
    _next_rung,
    knob="precision",
    alone="launch it with --adapt, which gives the script the plan's precision as it is; or take it from the plan: "
    "TrainingArguments(**worker.training_arguments(...)), model = worker.prepare(model)",
    by_hand="let the plan choose the precision: TrainingArguments(**worker.training_arguments(...)), model = worker.prepare(model)",
    at_last="no rung is left below %s: lower the learning rate, and check the data of that step",
)


def _again(text: str, most: int) -> Edit:
    return Edit(lambda _attempt: ({}, text), most=most)


_GENTLER = "lower the learning rate, clip the gradients, and check the data of that step"
TABLE = {
    "nan-divergence": _RUNG._replace(
        alone=_GENTLER + ". launcher changes to a safer precision automatically "
        "if the script takes it from the plan: by worker.autocast() and worker.scaler() if the script uses the worker, by --adapt if not"
    ),
    "not-learning": Edit(
        lambda _attempt: None,
        at_last="check that some parameters are trainable (requires_grad), that the learning rate is above 0, and that not all labels are ignored",
    ),
    "fp16-unscale": _RUNG,
    "bf16-unsupported": _RUNG,
    "bf16-dtype-mismatch": _RUNG,
    "cuda-oom": Edit(
        _less_memory,
        by_hand="let the plan choose the batch size: TrainingArguments(**worker.training_arguments(...)), or read worker.knobs().split",
    ),
    "host-oom-killed": Edit(
        _fewer_loaders,
        knob="loaders",
        by_hand="use fewer loader workers or more memory; if the script reads worker.knobs().loader_workers, the next attempt gets fewer",
        at_last="no loader workers are left to remove: the host or the container needs more memory",
    ),
    "gpu-busy-exclusive": Edit(
        _free_card,
        most=5,
        at_last="no other process used the card: let only one process of the script open it, not its parent or a loader worker as well",
    ),
    "port-in-use": _again("on another port", most=3),
    "nccl-error": _again("a new attempt", most=1),
    "disk-full": Edit(
        _fewer_checkpoints,
        most=1,
        at_last="free space on the file system that the line names; the disk of the checkpoints is not full",
    ),
    "checkpoint-corrupt": Edit(_earlier_checkpoint, knob="resume", most=2),
    "no-gpu-in-container": Edit(_new_container, most=1),
    "preempted": _again("a new attempt", most=5),
    "host-lost": _again("on the nodes that Slurm gives it next", most=5),
    "hang": _again("a new attempt", most=1),
    "unknown": _again("a new attempt", most=1),
}
"""The classes that have a remedy. A failure of any other class ends the run, unless it is in WAITS."""

WAITS = {
    "no-kernel-image": "image",
    "driver-too-old": "image",
    "gpu-lost": "card",
    "no-gpu-in-container": "client",
}
"""By class, the fix that a run awaits from a client; see `launch recover`. In a container the remedy of
TABLE comes first."""
_WENT_ON = {
    "image": "with the image or environment as it is now",
    "card": "on another card",
    "client": "in a new container",
}


_ASK = "the script never called worker.resume_from(), so it is not restarted: call it, or set restart = true in the job, or --set restart=true"
_ASK_ALONE = "to start it again after a failure, set restart = true in the job, or --set restart=true"


PREEMPTED = "preempted"


def preempted(number: int) -> AttemptFailure:
    """Return the failure of a command that was ended with a signal from outside the run."""
    return AttemptFailure(
        PREEMPTED,
        why="it was ended from outside by signal %d, and the kernel killed no process for lack of memory"
        % number,
        mend="find out what ends processes on this host: a scheduler, another user or a person",
    )


class FailureDecision(NamedTuple):
    """The decision on a failure: a remedy, or the end of the run with its reason and the advice to the user.

    With `waits_for` the run does not end: it waits until a client provides that fix.
    """

    reason: str
    remedy: Optional[Remedy]
    mend: str
    waits_for: Optional[str] = None


def decide(attempt: FailedAttempt) -> FailureDecision:
    """Return the decision on an attempt that failed."""
    verdict = _decide(attempt)
    waits_for = WAITS.get(attempt.failure.name)
    is_imitated = bool(attempt.plan.get("rehearsed"))
    if verdict.remedy or waits_for is None or is_imitated or attempt.attempts_left <= 0:
        return verdict
    return verdict._replace(waits_for=waits_for) if _may_begin_again(attempt) else verdict


def client_remedy(
    failure: AttemptFailure, waited_for: str, checkpoint: Optional[int], *, is_job: bool
) -> Remedy:
    """Return the remedy that a client has provided for a failure while the run waited.

    `is_job`: the run is a job of a cluster.
    """
    how = (
        "in a new job" if is_job and waited_for == "client" else _WENT_ON.get(waited_for, "as a client asked")
    )
    text = "%s; %s" % (how, _from_where(checkpoint))
    return Remedy(failure.name, {}, failure.since, text)


def begun(found: Remedy, checkpoint: Optional[int]) -> Remedy:
    """Return a remedy whose text names the checkpoint from which its attempt began, which may not be the expected one."""
    words = found.text.rpartition("; ")[0]
    return found._replace(text="%s; %s" % (words, _from_where(checkpoint))) if words else found


def _may_begin_again(attempt: FailedAttempt) -> bool:
    """Whether a restart repeats no work: the script resumes, or takes launcher's values and has made no step."""
    failure = attempt.failure
    is_untouched = bool(attempt.consumed) and failure.has_trained is False and failure.name != "unknown"
    return attempt.may_begin_again or is_untouched


def _from_where(checkpoint: Optional[int]) -> str:
    return "from the beginning" if checkpoint is None else "resuming from step %d" % checkpoint


def _decide(attempt: FailedAttempt) -> FailureDecision:
    failure = attempt.failure
    name, mend = failure.name, failure.mend or ""
    reason = failure.reason or name
    edit = TABLE.get(name)
    if edit is None:
        return FailureDecision(reason, None, mend)
    if edit.knob is not None and edit.knob not in attempt.consumed:
        by_hand = edit.by_hand if attempt.consumed else edit.alone or edit.by_hand
        if name == "nan-divergence" and len(attempt.plan.get("ladder") or ()) < 2:  # no precision is safer
            by_hand = _GENTLER
        return FailureDecision(reason, None, mend or by_hand)
    change = edit.find(attempt)
    if change is None:
        at_last = edit.at_last % _title_in_force(attempt) if "%s" in edit.at_last else edit.at_last
        return FailureDecision(reason, None, at_last or failure.others or mend or edit.by_hand)
    waits = failure.needs is not None  # waiting for room may be repeated without limit
    if edit.most is not None and attempt.tries >= edit.most and not waits:
        return FailureDecision(reason, None, mend)
    if not _may_begin_again(attempt):
        # The script ended before it could call resume_from().
        if attempt.consumed and failure.has_trained is False:
            return FailureDecision(reason, None, mend)
        if (
            name == "unknown" and failure.line is not None
        ):  # an error that the script printed: it would come again
            return FailureDecision(reason, None, mend)
        ask = _ASK if attempt.consumed else _ASK_ALONE
        return FailureDecision(reason, None, "%s; %s" % (mend, ask) if mend else ask)
    if attempt.attempts_left <= 0:
        return FailureDecision(
            "attempts-exhausted", None, "raise `attempts` in the job to allow another attempt"
        )
    changes, words = change
    text = "%s; %s" % (words, _from_where(attempt.checkpoint))
    return FailureDecision(reason, Remedy(name, changes, failure.since, text), "")


class CurrentChanges(NamedTuple):
    """The next attempt's changes to the plan's values, and the remedy that led to them.

    The remedy is None once an attempt has begun with it. `failure` is set if the agent of the last attempt
    died before it recorded its decision.
    """

    changes: ChangesRecord
    remedy: Optional[Remedy]
    failure: Optional[AttemptFailure]


def in_force(history: List[Tuple[AttemptRecord, StateRecord]]) -> CurrentChanges:
    """Return the values in force after the attempts so far, from (attempt.json, state.json) of each folder.

    The first folder of a run that resumes another one holds that run's changes.
    """
    current = CurrentChanges({}, None, None)
    for attempt, state in history:
        if attempt.get("kind") == "prepare" or state.get("began"):
            current = CurrentChanges(_changes(attempt), None, read_failure(state.get("failure")))
        remedy = read_remedy(state.get("remedy"))
        if remedy is not None:
            current = CurrentChanges({**current.changes, **remedy.changes}, remedy, None)
    return current


def _changes(record: Mapping[str, Any]) -> ChangesRecord:
    """Return the changes in a record. A record of an older agent has only a rung."""
    changes = record.get("changes")
    if isinstance(changes, dict):
        return cast("ChangesRecord", dict(changes))
    return {"rung": record["rung"]} if record.get("rung") else {}


def tries(history: List[Tuple[AttemptRecord, StateRecord]], name: str, checkpoint: Optional[int]) -> int:
    """Return how many attempts of a history failed with this class since the newest checkpoint was saved."""
    since = -1 if checkpoint is None else checkpoint
    failed = [state for _, state in history if (state.get("failure") or {}).get("class") == name]
    saved = [state.get("checkpoint") for state in failed]
    return sum((-1 if step is None else step) >= since for step in saved)


def _title_in_force(attempt: FailedAttempt) -> str:
    ladder: Sequence[Optional[PrecisionRecord]] = attempt.plan.get("ladder") or [None]
    rung = int(attempt.changes.get("rung", 0))
    return _title(ladder[rung]) if rung < len(ladder) else "this"


def _title(precision: Any) -> str:
    """Describe a precision of the ladder in a few words."""
    if not isinstance(precision, dict):
        return str(precision)
    mode, base = precision.get("mode"), precision.get("base_dtype")
    tf32 = " with tf32" if precision.get("tf32") else ""
    return "%s%s over %s" % (mode, tf32, base) if base else "%s%s" % (mode, tf32)
