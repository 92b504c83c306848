"""Judge how an attempt ended, from values only: the command's exit, its reports, and the stop requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Optional, Sequence

from ..diagnosis.remedy import AttemptFailure
from ..record.strict_json import JsonObject
from ..system.process import ProcessProof
from .stopping import RENT_OVER, reason_of

if TYPE_CHECKING:
    from ..diagnosis.good_exit import Doubt

RENT_WORDS = {"rent": "its machine's time is up"}
NO_MARKER = "no-completion-marker"
NOTHING_ON_CARD = "nothing that the command ran was on the card, so the rehearsal shows nothing about it"


class CommandResult(NamedTuple):
    """How a command ended, and what is known of its training.

    `code` or `signal` is None. `remaining` are processes that could not be ended. `failure` is set if the
    attempt was given up while the command ran. `marker` is the step that the worker reported as done.
    `lost_loss` is the line of the last training loss if that was not finite. `uses_worker`: the script itself
    used the worker, in this attempt or an earlier one. `is_without_step`: a training began and made no step.
    `is_cut_short`: a training reported neither its end nor its last step. `is_off_card`: a card was imitated,
    and nothing ran on it. `shutdown_reason` is the reason of a run that continues later, if the host and not the
    user asked the command to stop. `log` and `oom_kills` belong to the node that ended a command on several nodes.
    `lingered`: the script had ended, and its process was ended later; `log` is then the script's log.
    `is_status_unknown`: that process had to be killed. `zero_shares` are the names of metrics that are a share
    of right answers and were 0 at last.
    """

    code: Optional[int]
    signal: Optional[int]
    remaining: List[ProcessProof]
    is_stop_asked: bool
    wish: str
    failure: Optional[AttemptFailure]
    step: Optional[int]
    marker: Optional[int]
    is_marked: bool
    was_asked_to_end: bool
    uses_worker: bool
    lost_loss: Optional[str] = None
    is_without_step: bool = False
    is_cut_short: bool = False
    is_off_card: bool = False
    shutdown_reason: str = ""
    log: Optional[bytes] = None
    oom_kills: Optional[int] = None
    lingered: Optional[str] = None
    is_status_unknown: bool = False
    zero_shares: Sequence[str] = ()

    @property
    def is_good_exit(self) -> bool:
        """Whether the command exited with status 0 without a request to end and without a known failure."""
        was_asked = self.is_stop_asked or self.was_asked_to_end
        return self.failure is None and not self.is_bad_end and not was_asked

    @property
    def is_bad_end(self) -> bool:
        """Whether the command ended with an error or by a signal."""
        return bool(self.code) or self.signal is not None

    def is_completed(self, steps: Optional[int]) -> bool:
        """Whether the worker reported the end of its training.

        An end before the plan's last step counts only if nothing asked the command to end.
        """
        is_at_end = steps is not None and self.marker == steps
        return self.is_marked and (is_at_end or not self.was_asked_to_end)


def _unmarked(outcome: CommandResult) -> Dict[str, str]:
    """Return the failure of a script that exited with status 0 without reporting the end of its training."""
    if outcome.uses_worker:
        why = "the script uses launcher_worker, and ended with exit status 0 without worker.done(step)"
        mend = "call worker.done(step) once all is saved; if the script ended early, its log shows where"
    else:
        why = "its Trainer reported neither the end of its training nor the last step, and the script ended with exit status 0"
        mend = "find where the script ended: launch logs"
    return {"class": NO_MARKER, "line": "step %s" % (outcome.step or 0), "why": why, "mend": mend}


class Suspicion(NamedTuple):
    """A failure or a doubt behind an exit status of 0; both are None for a sound exit."""

    failure: Optional[AttemptFailure] = None
    doubt: Optional[Doubt] = None


def suspect(outcome: CommandResult, steps: Optional[int], since: int, log: Callable[[], bytes]) -> Suspicion:
    """Return the failure or doubt that the last loss and the log show for an exit status of 0.

    `since` is the first step that no finite loss has confirmed. `log` returns the end of the log; it is
    called only if needed.
    """
    if outcome.is_off_card:
        return Suspicion(AttemptFailure("not-rehearsable", None, NOTHING_ON_CARD))
    if outcome.lost_loss is not None:
        why = "the last loss was not finite, although the script ended with exit status 0"
        return Suspicion(AttemptFailure("nan-divergence", outcome.lost_loss, why, since=since))
    if outcome.is_completed(steps):
        return Suspicion(doubt=_of_answers(outcome.zero_shares))
    text = log() if outcome.log is None else outcome.log
    if not (text or outcome.is_without_step or outcome.is_status_unknown):  # nothing was printed
        return Suspicion(doubt=_of_answers(outcome.zero_shares))
    from ..diagnosis import good_exit  # its tables take long to load

    found = good_exit.read_good_exit(text)
    if found.failure is not None:
        name, line, _, why, mend = found.failure
        return Suspicion(AttemptFailure(name, line, why, mend))
    if found.doubt is not None:
        return Suspicion(doubt=found.doubt)
    if outcome.is_status_unknown:
        return Suspicion(doubt=good_exit.NO_STATUS)
    if outcome.is_without_step:
        return Suspicion(doubt=good_exit.NO_STEP)
    return Suspicion(doubt=_of_answers(outcome.zero_shares))


def not_resumed(checkpoint: str) -> Doubt:
    """Return the doubt about a run whose script did not load the checkpoint that it was to continue from."""
    from ..diagnosis.good_exit import Doubt

    return Doubt(
        "not-resumed", None, "no Trainer of the script loaded %s: its training began anew" % checkpoint
    )


def _of_answers(zero_shares: Sequence[str]) -> Optional[Doubt]:
    """Return the doubt about a training that ended without one right answer."""
    if not zero_shares:
        return None
    from ..diagnosis.good_exit import Doubt

    words = ", ".join(zero_shares) + " 0.00: at the end, no answer was right"
    mend = (
        "compare some answers with the right ones: their form, the labels, and how the metric compares them"
    )
    return Doubt("no-right-answer", None, words, mend)


class AttemptResult(NamedTuple):
    """How an attempt ended.

    A `failed` attempt whose evidence has a failure may be followed by another one if a remedy exists.
    """

    state: str
    reason: str
    evidence: JsonObject


def judge(
    outcome: CommandResult,
    failure: Optional[AttemptFailure],
    doubt: Optional[Doubt],
    wish: str,
    steps: Optional[int],
) -> AttemptResult:
    """Judge an attempt.

    `failure` and `doubt` come from the outcome or from a diagnosis. `wish` is the user's last request: run, stop or cancel.
    """
    evidence: JsonObject = {"exit": outcome.code, "signal": outcome.signal, "step": outcome.step}
    if outcome.remaining:
        evidence["remaining"] = outcome.remaining
    if outcome.lingered is not None:
        evidence["lingered"] = outcome.lingered
    if failure is None and outcome.code == 0 and outcome.is_completed(steps):
        return AttemptResult("succeeded", "completed", {**evidence, **_doubted(doubt)})
    if failure is not None:
        evidence.update(failure.evidence())
    if wish != "run" and outcome.remaining:
        return AttemptResult("stop-incomplete", "processes-remain", evidence)
    if wish == RENT_OVER:
        return AttemptResult("waiting", RENT_OVER, {**evidence, **RENT_WORDS})
    if wish != "run":
        return AttemptResult("stopped", reason_of(wish), evidence)
    if failure is not None:
        return AttemptResult("failed", failure.name, evidence)
    if outcome.is_stop_asked:
        return AttemptResult("resuming", outcome.shutdown_reason, evidence)
    if outcome.uses_worker or outcome.is_cut_short:
        return AttemptResult(
            "failed", NO_MARKER, {**evidence, "marker": outcome.marker, **_unmarked(outcome)}
        )
    return AttemptResult("succeeded", "exit-only", {**evidence, **_doubted(doubt)})


def _doubted(doubt: Optional[Doubt]) -> JsonObject:
    return {"doubt": doubt.record()} if doubt is not None else {}
