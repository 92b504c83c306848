"""The progress of an attempt, from the events of its workers and from its log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Set

from ..diagnosis.remedy import AttemptFailure
from ..record.strict_json import JsonObject
from .hang_watch import HangWatch
from .history import HELD

if TYPE_CHECKING:
    from ..logs.log_scanner import LoggedMetric
    from ..logs.loss_watch import Divergence, LastLoss
    from ..record.run_records import EventRecord

LOST_LOSSES = 3  # in a row; a worker's guard, if the script has one, reacts earlier
_UNLABELLED = (
    "no loss was finite from the first step on, and every gradient is zero: no label counts. Are all labels masked (-100), because max_length cuts "
    "the answers off or the mark of the response is not found?"
)
TRIP_GRACE_S = 5.0  # for the script to exit with a traceback; SIGTERM would make it save its bad state
BETWEEN_S = 3.0  # from SIGTERM to the step that reacts to it, in addition to the time of steps
MAX_CHARS = 500
_FEW_STEPS = 20  # a training of fewer steps need not have learnt anything
_OF_RIGHT_ANSWERS = re.compile(
    r"(?:^|(?<!token)[_/.])(accuracy|exact_match|answer_rate|f1|em|pass@1)$", re.IGNORECASE
)
_HOOK = "hook"  # the source of the start-up hook's reports
NODE = "node"
"""The source of reports by a member, the agent's process on one node of several."""
_NON_FINITE = ("nan", "inf", "-inf")
_TRIPS = ("nan-divergence", "not-learning")  # the classes that a worker's guard may report


class ProgressChange(NamedTuple):
    """The consequences of a report: write the state, give the attempt up after a grace, or keep its proof."""

    has_new_state: bool = False
    failure: Optional[AttemptFailure] = None
    grace_s: float = 0.0
    has_proof: bool = False


class AttemptProgress:
    """The last known step, loss and checkpoint of an attempt, and whether it has failed.

    `proof` is the worker's evidence from the first good steps, `trial` its measurement for `launch verify`.
    `doubtful_from` is the first step whose update no finite loss has confirmed yet. `unsaved` is the number
    of bytes of a checkpoint that were written when saving failed. `has_ended`: the last training that began
    has reported its end. `has_own_resume`: the script's own Trainer was given its checkpoint. `is_off_card`: a card is imitated, and nothing is known to have run on it. Reports
    change only these values; their consequences are returned as `ProgressChange`.
    """

    def __init__(
        self,
        *,
        save_s: float = 0.0,
        stop_grace_s: float = 30.0,
        hang_s: Optional[float] = None,
        imitates_card: bool = False,
        only_warns: bool = False,
        redact: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """Start before the first report.

        `save_s` is the longest save time of earlier attempts. If it `only_warns`, losses that are not finite end nothing.
        """
        self.step: Optional[int] = None
        self.begins_at: Optional[int] = None
        """The first step that this attempt has reported."""
        self.loss: Any = None
        self.checkpoint: Optional[int] = None
        self.save_s = save_s
        self.consumed: Set[str] = set()
        self.failure: Optional[AttemptFailure] = None
        self.marker: Optional[int] = None
        self.is_marked = False
        self.was_asked_to_end = False
        self.uses_worker = False
        self.has_worker_metrics = False
        self.has_trained = False
        self.has_ended = False
        self.has_own_resume = False
        self.doubtful_from = 1
        self.proof: Optional[JsonObject] = None
        self.trial: Optional[JsonObject] = None
        self.unsaved: Optional[int] = None
        self.is_off_card = imitates_card
        self.liveness = HangWatch(hang_s)
        self._stop_grace_s = stop_grace_s
        self._redact = redact
        self._only_warns = only_warns
        self._shares: Dict[str, Any] = {}
        self._lost_losses = 0
        self._has_finite_loss = False
        self._lost_loss: Optional[str] = None
        self._first_step: Optional[int] = None
        self._steps_left: Optional[int] = None
        """The last step of a training that has begun and not reported its end."""

    def lost_loss(self, of_log: Optional[LastLoss]) -> Optional[str]:
        """Return the line of the last training loss if it was certainly not finite.

        The log's loss `of_log` is used only if no worker reports losses.
        """
        if self.has_worker_metrics or of_log is None:
            return self._lost_loss
        return of_log.line if of_log.is_certain and not of_log.is_finite else None

    @property
    def zero_shares(self) -> List[str]:
        """The metrics that are a share of right answers and were 0 at last, with all others of their kind; empty after few steps."""
        if (self.step or 0) < _FEW_STEPS:
            return []
        kinds = {
            name: name.lower()[found.start(1) :]
            for name in self._shares
            if (found := _OF_RIGHT_ANSWERS.search(name))
        }
        above = {kinds[name] for name, value in self._shares.items() if value != 0}
        return [name for name in self._shares if kinds[name] not in above]

    @property
    def is_without_step(self) -> bool:
        """Whether a training began before its last step and made no step."""
        return self._first_step is not None and (self.step or 0) <= self._first_step

    @property
    def is_cut_short(self) -> bool:
        """Whether a training began, and has neither reported its end nor reached its last step."""
        return self._steps_left is not None and (self.step or 0) < self._steps_left

    @property
    def grace_s(self) -> float:
        """Seconds that the training may take to save when it is asked to end.

        That is the plan's time, or the time estimated from the training's steps and saves if that is longer.
        """
        needed_s = BETWEEN_S + 2 * (self.liveness.step_s or 0.0) + 2 * self.save_s
        return max(self._stop_grace_s, needed_s)

    def learn(self, event: EventRecord) -> Optional[ProgressChange]:
        """Take in an event of a worker. Return its consequences; None for most events.

        Reports of the start-up hook and of a node's member count as well, but do not show that the script
        itself uses the worker.
        """
        self.uses_worker = self.uses_worker or event.get("source") not in (_HOOK, NODE)
        self.liveness.note_sign()
        kind, step = event["kind"], event.get("step")
        values: Any = event.get("values")
        values = values if isinstance(values, dict) else {}
        if kind == "metric":
            self.has_worker_metrics = True
            self._note_step(step)
            self.loss = values.get("loss", self.loss)
            self._note_shares(values)
            return self._judge_loss(step, values) if "loss" in values and _is_first(event) else None
        if kind == "trip" and values.get("class") in _TRIPS:
            return self._trip(step, values)
        if kind == "consumed":
            return self._consume(values)
        if kind == "checkpoint" and isinstance(step, int):
            self.checkpoint = step
            self.save_s = values["seconds"] if isinstance(values.get("seconds"), float) else self.save_s
            # Written at once: the tries of a remedy are counted since the last checkpoint.
            return ProgressChange(has_new_state=True)
        if kind == "evidence" and isinstance(values.get("proof"), dict) and self.proof is None:
            self.proof = values["proof"]
            return ProgressChange(has_proof=True)
        if kind == "evidence" and isinstance(values.get("rehearsal"), dict):
            self.is_off_card = False
        if kind == "evidence" and "own_resume" in values:
            self.has_own_resume = True
        if kind == "evidence" and isinstance(values.get("unsaved"), dict):
            size = values["unsaved"].get("bytes")
            self.unsaved = size if isinstance(size, int) else 0
        if kind == "evidence" and isinstance(values.get("trial"), dict):
            self.trial = self._redact(values["trial"])
        self._note_phase(event, step, values)
        return None

    def _note_phase(self, event: EventRecord, step: Any, values: JsonObject) -> None:
        """Take in an event about a phase of the training."""
        kind = event["kind"]
        if kind == "beat":
            self._note_step(step)
        elif kind == "stopping":
            self.was_asked_to_end = True
        elif kind == "begin" and isinstance(values.get("step"), int):
            self.has_worker_metrics = self.has_worker_metrics or values.get("logs") is True
            self.has_trained, self.has_ended = True, False
            self.doubtful_from = values["step"] + 1
            self._first_step = values["step"] if values["step"] != values.get("steps") else None
            self._steps_left = values["steps"] if isinstance(values.get("steps"), int) else None
        elif kind == "end":
            self._end()
        elif kind == "done" and _is_first(event):
            self._end()
            self.is_marked = True
            self.marker = step if isinstance(step, int) else None

    def _end(self) -> None:
        """Note that a training has reported its end."""
        self._steps_left, self.has_ended = None, True
        self.liveness.rest()

    def _note_shares(self, values: JsonObject) -> None:
        self._shares.update((name, value) for name, value in values.items() if _OF_RIGHT_ANSWERS.search(name))

    def _note_step(self, step: Any) -> None:
        if isinstance(step, int):
            self.step = step
            self.begins_at = step if self.begins_at is None else self.begins_at
            self.has_trained = self.has_trained or step > 0
            self.liveness.note_step(step)

    def _consume(self, values: JsonObject) -> Optional[ProgressChange]:
        if not isinstance(values.get("knobs"), list):
            return None
        held = values.get("held") if isinstance(values.get("held"), list) else []
        reported = {*map(str, values["knobs"]), *(HELD + str(knob) for knob in held or ())}
        if reported <= self.consumed:
            return None
        self.consumed = self.consumed | reported
        # Written at once: the next agent needs to know whether `resume` was consumed.
        return ProgressChange(has_new_state=True)

    def _trip(self, step: Any, values: JsonObject) -> ProgressChange:
        """Return the failure that a worker's guard reports. Without a first bad step, no step can be trusted."""
        if isinstance(step, int):
            self.step = step
        since = values.get("since")
        values = self._redact(values)  # before the text is cut: a part of a secret is secret too
        name, why = values["class"], str(values.get("why") or "the worker's guard gave up")
        described = {"class", "why", "since", "key"}
        figures = ["%s %s" % pair for pair in values.items() if pair[0] not in described]
        failure = AttemptFailure(
            name,
            line=("step %s: %s" % (step, ", ".join(figures)))[:MAX_CHARS],
            why=(why[len(name) + 2 :] if why.startswith(name + ": ") else why)[:MAX_CHARS],
            since=since if isinstance(since, int) and since >= 0 else 0,
        )
        return ProgressChange(failure=failure, grace_s=TRIP_GRACE_S)

    def _judge_loss(self, step: Any, values: JsonObject) -> Optional[ProgressChange]:
        """Return a failure if a script reports several non-finite losses in a row and continues."""
        loss = values["loss"]
        if loss not in _NON_FINITE:
            self._lost_losses, self._lost_loss = 0, None
            self._has_finite_loss = True
            self.doubtful_from = step if isinstance(step, int) else self.doubtful_from
            return None
        self._lost_losses += 1
        self._lost_loss = line = "step %s: loss %s" % (step, loss)
        if self._lost_losses != LOST_LOSSES or self._only_warns:
            return None
        if values.get("grad_norm") == 0 and not self._has_finite_loss:
            return ProgressChange(failure=AttemptFailure("not-learning", line, _UNLABELLED, since=0))
        why = "the loss was not finite %d times in a row" % LOST_LOSSES
        # The first bad loss shows that the update of the step before it was bad.
        return ProgressChange(failure=AttemptFailure("nan-divergence", line, why, since=self.doubtful_from))

    def learn_divergence(self, divergence: Divergence) -> Optional[ProgressChange]:
        """Return the failure of a log whose loss diverged, unless the script's own worker reports losses."""
        if self.has_worker_metrics or self._only_warns:
            return None
        line, why, since = divergence.line, divergence.why, divergence.since
        return ProgressChange(failure=AttemptFailure("nan-divergence", line, why, since=since))

    def learn_log_metrics(self, metrics: List[LoggedMetric]) -> bool:
        """Take in metrics from the log, unless the script's worker sends its own.

        Return whether they were used.
        """
        if self.has_worker_metrics or not metrics:
            return False
        for step, values in metrics:
            self._note_step(step)
            self.loss = values.get("loss", self.loss)
            self._note_shares(values)
            self.has_trained = self.has_trained or "loss" in values
        return True

    def fail(self, failure: AttemptFailure) -> bool:
        """Mark the attempt as failed, regardless of later reports. The first failure counts.

        Return whether this is the first.
        """
        if self.failure is not None:
            return False
        has_trained = self.has_trained or bool(self.step)
        self.failure = failure._replace(step=self.step, has_trained=has_trained)
        return True


def _is_first(event: EventRecord) -> bool:
    """Whether an event comes from rank 0, or names no rank."""
    return bool(event.get("rank", 0) == 0)
