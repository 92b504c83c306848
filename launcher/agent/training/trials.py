"""The trials of a verification: which one comes next, by the plan and the earlier results. Pure functions.

A verification is a run whose attempts are trials, each in a separate process:

    card     the card's results and speed; no job runs. A rehearsal has none
    rung     the job for some steps in one precision of the ladder. fp32 comes first: the gradients of the other
             precisions are compared with its gradients. A trial that runs out of memory is repeated with half the
             micro-batch.
    batch    the job for a few steps with another micro-batch, in the first precision that worked: the largest that fits

Example: card, fp32, fp16 over an fp16 base, fp16 over an fp32 base, then fp16 with micro-batches of 16, 32
(out of memory).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..diagnosis import remedy
from ..record.strict_json import JsonObject

if TYPE_CHECKING:
    from ..record.run_records import (
        AttemptRecord,
        ChangesRecord,
        PlanRecord,
        PrecisionRecord,
        StateRecord,
        VerificationRecord,
    )

CARD, RUNG, BATCH = "card", "rung", "batch"
GOOD = "good"
"""The result of a trial with complete measurements; any other result is the class of a failure."""
OUT_OF_MEMORY = "cuda-oom"
NOT_VERIFIABLE = "not-verifiable"
BY_CHANCE = ("port-in-use", "preempted", "nccl-error", "gpu-busy-exclusive")
"""Failures that prove nothing about a precision."""
MADE_AGAIN = (*BY_CHANCE, "unknown")
"""Failures after which the trial is repeated once: they may prove nothing about a precision."""
BATCH_STEPS = 4
MAX_BATCHES = 6


class Trial(NamedTuple):
    """One trial; `rung` counts from 0."""

    kind: str
    rung: int = 0
    micro_batch: int = 1
    accumulation: int = 1

    def changes(self) -> ChangesRecord:
        """Return the attempt's changes to the plan's values, as `attempt.json` holds them."""
        return {
            "rung": self.rung,
            "micro_batch": self.micro_batch,
            "accumulation": self.accumulation,
            "trial": self.kind,
        }

    def title(self, rungs: int) -> str:
        """Return a short title of the trial, on a ladder of `rungs` rungs: `rung 2 of 3`."""
        if self.kind == RUNG:
            return "rung %d of %d" % (self.rung + 1, rungs)
        return "micro-batch %d" % self.micro_batch if self.kind == BATCH else self.kind


class FinishedTrial(NamedTuple):
    """A trial, its result, its measurements, and whether its script took its batch from the plan."""

    trial: Trial
    result: str
    measured: Optional[JsonObject] = None
    takes_batch: bool = False


def read_trial(attempt: AttemptRecord) -> Optional[Trial]:
    """Return the trial that an attempt was; None for any other record."""
    changes = attempt.get("changes")
    if attempt.get("kind") != "attempt" or not isinstance(changes, dict) or "trial" not in changes:
        return None
    return Trial(changes["trial"], changes["rung"], changes["micro_batch"], changes["accumulation"])


def ended_trials(records: Sequence[Tuple[AttemptRecord, StateRecord]]) -> List[FinishedTrial]:
    """Return the trials that have ended, from (attempt.json, state.json) of each folder.

    `trial` in a state holds the measurements. A trial has not ended if its agent died in the middle, or if it
    failed for the first time for a reason in MADE_AGAIN.
    """
    ended: List[FinishedTrial] = []
    excused = set()
    for attempt, state in records:
        trial = read_trial(attempt)
        if trial is None:
            continue
        failure = remedy.read_failure(state.get("failure"))
        measured = state.get("trial")
        result = GOOD if measured is not None else failure.name if failure is not None else None
        if result in MADE_AGAIN and (trial, result) not in excused:
            excused.add((trial, result))
        elif result is not None:
            takes_batch = "split" in (state.get("consumed") or ())
            ended.append(FinishedTrial(trial, result, measured, takes_batch))
    return ended


def next_trial(plan: PlanRecord, ended: Sequence[FinishedTrial]) -> Optional[Trial]:
    """Return the next trial; None once all have been made, or if the card itself cannot be used."""
    is_rehearsed = plan.get("rehearsed") is True
    if not is_rehearsed and not ended:
        return Trial(CARD, **_split(plan, int(plan["split"]["micro_batch"])))
    if not is_rehearsed and ended[0].result != GOOD:
        return None
    for rung in order(plan["ladder"]):
        trial = _of_rung(plan, rung, [one for one in ended if one.trial[:2] == (RUNG, rung)])
        if trial is not None:
            return trial
    is_on_card = plan["profile"]["kind"] == "cuda" and not is_rehearsed
    return _of_batch(plan, ended) if is_on_card else None


def order(ladder: Sequence[PrecisionRecord]) -> List[int]:
    """Return the rungs in the order of their trials: fp32 without tf32 first, then as on the ladder."""
    rungs = range(len(ladder))
    return sorted(rungs, key=lambda rung: (not is_reference(ladder[rung]), rung))


def is_reference(precision: PrecisionRecord) -> bool:
    """Whether this precision is the reference for the gradients of the others."""
    return precision.get("mode") == "fp32" and not precision.get("tf32")


def measurement(ended: Sequence[FinishedTrial], rung: int) -> Optional[JsonObject]:
    """Return the measurements of a rung's trials so far; None if it has not worked.

    These are the figures of the rung's own trial, and `fits` and `too_large`: the largest micro-batch that
    worked, and the smallest one that did not.
    """
    of_rung = [one for one in ended if one.trial.kind in (RUNG, BATCH) and one.trial.rung == rung]
    own = next((one.measured for one in of_rung if one.trial.kind == RUNG and one.measured), None)
    if own is None:
        return None
    fits = [one.trial.micro_batch for one in of_rung if one.result == GOOD]
    too_large = [one.trial.micro_batch for one in of_rung if one.result == OUT_OF_MEMORY]
    return {**own, "fits": max(fits), "too_large": min(too_large, default=None)}


def is_refuted(ended: Sequence[FinishedTrial], trial: Trial) -> bool:
    """Whether a rung has just failed, so that an earlier verification's measurements of it are invalid."""
    last = ended[-1] if ended else None
    if last is None or last.trial != trial or trial.kind != RUNG:
        return False
    return last.result not in (GOOD, NOT_VERIFIABLE, *BY_CHANCE)


def too_short(measured: JsonObject, verification: VerificationRecord) -> Optional[remedy.AttemptFailure]:
    """Return the failure of an inconclusive trial, whose job ended while its weights were held; else None."""
    steps, held = measured.get("steps"), int(verification["held"])
    if isinstance(steps, int) and steps > held:
        return None
    why = "the job ended after %s steps, and the weights are held for the first %d" % (steps, held)
    mend = "a job of more steps   launch verify … --set steps=%d" % int(verification["steps"])
    return remedy.AttemptFailure(NOT_VERIFIABLE, None, why, mend)


def best(ended: Sequence[FinishedTrial]) -> Optional[FinishedTrial]:
    """Return the first rung of the ladder that worked; None if none has."""
    good = [one for one in ended if one.trial.kind == RUNG and one.result == GOOD]
    return min(good, key=lambda one: one.trial.rung, default=None)


def _of_rung(plan: PlanRecord, rung: int, made: Sequence[FinishedTrial]) -> Optional[Trial]:
    if not made:
        return Trial(RUNG, rung, **_split(plan, int(plan["split"]["micro_batch"])))
    last = made[-1]
    smaller = [size for size in _sizes(plan) if 2 * size <= last.trial.micro_batch]
    if last.result == OUT_OF_MEMORY and last.takes_batch and smaller:
        return Trial(RUNG, rung, **_split(plan, smaller[-1]))
    return None


def _of_batch(plan: PlanRecord, ended: Sequence[FinishedTrial]) -> Optional[Trial]:
    """Return the trial of the next micro-batch: twice the largest that fits, then a bisection.

    The bisection is between the largest that fits and the smallest that does not.
    """
    worked = best(ended)
    tried = [one for one in ended if one.trial.kind == BATCH]
    if worked is None or not worked.takes_batch or len(tried) >= MAX_BATCHES:
        return None
    rung = worked.trial.rung
    fit = max([worked.trial.micro_batch, *(one.trial.micro_batch for one in tried if one.result == GOOD)])
    failed = [
        one.trial.micro_batch
        for one in ended
        if one.trial.kind != CARD and one.trial.rung == rung and one.result != GOOD
    ]
    larger = [size for size in _sizes(plan) if fit < size and all(size < limit for limit in failed)]
    if not larger:
        return None
    doubled = [size for size in larger if size >= 2 * fit]
    size = larger[len(larger) // 2] if failed or not doubled else doubled[0]
    return Trial(BATCH, rung, **_split(plan, size))


def _sizes(plan: PlanRecord) -> List[int]:
    """Return the micro-batches that divide one card's share of the global batch, the smallest first."""
    share = _share(plan)
    return [size for size in range(1, share + 1) if share % size == 0]


def _share(plan: PlanRecord) -> int:
    return int(plan["split"]["micro_batch"]) * int(plan["split"]["accumulation"])


def _split(plan: PlanRecord, micro_batch: int) -> Dict[str, int]:
    return {"micro_batch": micro_batch, "accumulation": _share(plan) // micro_batch}
