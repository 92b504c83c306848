"""Judge how an attempt ended, from values alone: what the command did, what it reported, what was asked of it."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from ..diagnosis.remedy import Failure
from .stopping import reason_of

SHUTDOWN = "host-shutdown"


class Outcome(NamedTuple):
    """How a command ended, and what is known of its training.

    `code` or `signal` is None. `remaining` are processes that could not be ended. `failure` is set if the attempt was
    given up while the command ran. `marker` is the step that the worker reported as done.
    """

    code: Optional[int]
    signal: Optional[int]
    remaining: List[Dict[str, Any]]
    is_stop_asked: bool
    wish: str
    failure: Optional[Failure]
    step: Optional[int]
    marker: Optional[int]
    is_marked: bool
    was_asked_to_end: bool
    uses_worker: bool

    @property
    def is_bad_end(self) -> bool:
        """Whether the command ended with an error or by a signal."""
        return bool(self.code) or self.signal is not None

    def is_completed(self, steps: Optional[int]) -> bool:
        """Whether the worker reported the end of its training, at the plan's last step if there is one."""
        is_at_end = self.marker == steps if steps is not None else not self.was_asked_to_end
        return self.is_marked and is_at_end


class Judgement(NamedTuple):
    """How an attempt ended. A `failed` one with a failure may be followed by another attempt, if there is a remedy."""

    state: str
    reason: str
    evidence: Dict[str, Any]


def judge(outcome: Outcome, failure: Optional[Failure], wish: str, steps: Optional[int]) -> Judgement:
    """Judge an attempt; `failure` is the failure by the outcome or by a diagnosis, `wish` the last wish of the user."""
    evidence: Dict[str, Any] = {"exit": outcome.code, "signal": outcome.signal, "step": outcome.step}
    if outcome.remaining:
        evidence["remaining"] = outcome.remaining
    if failure is None and outcome.code == 0 and outcome.is_completed(steps):
        return Judgement("succeeded", "completed", evidence)
    if failure is not None:
        evidence.update(failure.evidence())
    if wish != "run" and outcome.remaining:
        return Judgement("cancel-incomplete", "processes-remain", evidence)
    if wish != "run":
        return Judgement("cancelled", reason_of(wish), evidence)
    if failure is not None:
        return Judgement("failed", failure.name, evidence)
    if outcome.is_stop_asked:
        return Judgement("resuming", SHUTDOWN, evidence)
    if outcome.uses_worker:
        return Judgement("failed", "no-completion-marker", {**evidence, "marker": outcome.marker})
    return Judgement("succeeded", "exit-only", evidence)
