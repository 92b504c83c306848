"""Report the precision of a run's attempts, compared with the precision that its card needs; read from the local copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from launcher.base.json_file import JsonObject
from launcher.copy.local_copy import LocalCopy
from launcher.errors import BadFileError
from launcher.planning.precision.precision_comparison import (
    PrecisionRow,
    PrecisionVerdict,
    compare,
    judge,
    on_rung,
)
from launcher.planning.precision.precision_history import PRECISION_FAILURES
from launcher.runs.launch.adapting import adapted_command
from launcher.values.job import trains_adapter
from launcher.values.plan import Plan
from launcher.values.precision import Precision
from launcher.values.record import Reason, State, in_todays_words, is_terminal
from launcher.values.reported.used_precision import PrecisionSeen

HELD = "held "
"""The prefix of a knob that a script consumed, but sets itself."""
_NEW = (State.RESERVED, State.PREPARING, State.WAITING)


class AttemptPrecision(NamedTuple):
    """The precision of one attempt.

    `takes_plan`: the script takes its precision from the plan. `planned` is that precision, None for a script
    that does not. `seen` are the start-up hook's observations in order. `ran` is the last of them; without
    any, the precision that the script took from the plan. `torch` is its version, if the worker reported it.
    """

    attempt: int
    rung: int
    planned: Precision | None
    takes_plan: bool
    seen: tuple[PrecisionSeen, ...]
    ran: PrecisionSeen | None
    state: str
    reason: str | None
    torch: str | None

    @property
    def source(self) -> Literal["seen", "plan"] | None:
        """The source of `ran`: the hook's observation, or the plan's value that the script took."""
        return "seen" if self.seen else "plan" if self.ran else None

    @property
    def is_safest(self) -> bool:
        """Whether it diverged in a precision that no other would mend."""
        return self.reason == Reason.NAN_DIVERGENCE and self.ran is not None and self.ran.is_float32

    @property
    def words(self) -> str | None:
        """The precision that the attempt used, in a few words; None if unknown."""
        if self.planned is not None:
            return self.planned.title
        if self.ran is None:
            return None
        weights = "/".join(sorted(self.ran.trainable))
        return f"{'/'.join(self.ran.autocast)} autocast" if self.ran.autocast else f"{weights} weights"


class PrecisionReport(NamedTuple):
    """The precision of a run's last attempt in which it is known, compared with the plan's first rung.

    Without such an attempt `ran` and `verdict` are `None`, and `sentence` says why the precision is unknown.
    `next_command` is `None` if no change is needed.
    """

    run: str
    plan: Plan
    attempts: tuple[AttemptPrecision, ...]
    ran: AttemptPrecision | None
    rows: tuple[PrecisionRow, ...]
    verdict: PrecisionVerdict | None
    sentence: str
    next_command: str | None

    @property
    def words(self) -> str | None:
        """The precision of the last attempt that shows it, in a few words; None if unknown."""
        return self.ran.words if self.ran is not None else None

    @property
    def unsound(self) -> str | None:
        """The reason why the used precision is not sound on the card; None if it is sound or unknown."""
        return self.sentence if self.verdict is not None and self.verdict.kind == "unsound" else None


def precision_report(local_copy: LocalCopy) -> PrecisionReport:
    """Return the precision that a run used.

    Raises BadFileError if this version does not understand its plan.
    """
    plan = local_copy.whole_plan()
    attempts = tuple(_attempts(local_copy, plan))
    ran = next((attempt for attempt in reversed(attempts) if attempt.ran is not None), None)
    if ran is None or ran.ran is None:
        return PrecisionReport(
            local_copy.run, plan, attempts, None, (), None, _why_unknown(plan, attempts), None
        )
    verdict = _verdict(plan, ran.ran, ran)
    rows = compare(
        ran.ran, plan.ladder[0], is_rehearsed=plan.rehearsed, trains_all=not trains_adapter(plan.method)
    )
    may_adapt = (verdict.kind != "as-wanted" or _has_failed(ran)) and not (ran.takes_plan or ran.is_safest)
    command = adapted_command(plan) if may_adapt else None
    return PrecisionReport(
        local_copy.run, plan, attempts, ran, rows, verdict, _sentence(verdict, ran, attempts), command
    )


def known_precision(local_copy: LocalCopy) -> PrecisionReport | None:
    """Return the precision that a run used; None if this version does not understand its plan."""
    try:
        return precision_report(local_copy)
    except BadFileError:
        return None


def _attempts(local_copy: LocalCopy, plan: Plan) -> Iterator[AttemptPrecision]:
    consumed: set[str] = (
        set()
    )  # values taken by an attempt count for later attempts too, which may fail before they take them
    for folder in local_copy.files.numbered():
        record, state = (local_copy.files.read_json(f"{folder}/{name}.json") for name in ("attempt", "state"))
        if record.get("kind") != "attempt":
            continue
        taken = state.get("consumed")
        consumed |= {str(knob) for knob in taken} if isinstance(taken, list) else set()
        rung = record.get("rung")
        rung = rung if isinstance(rung, int) and 0 <= rung < len(plan.ladder) else 0
        planned = plan.ladder[rung]
        takes_plan = "precision" in consumed and f"{HELD}precision" not in consumed
        seen, proof = _evidence(local_copy, folder)
        ran = (
            seen[-1]
            if seen
            else PrecisionSeen.of_plan(
                planned,
                proof.get("dtypes"),
                has_frozen=trains_adapter(plan.method),
                is_rehearsed=plan.rehearsed,
            )
            if takes_plan
            else None
        )
        number = record.get("attempt")
        yield AttemptPrecision(
            number if isinstance(number, int) else int(folder),
            rung + 1,
            planned if takes_plan else None,
            takes_plan,
            seen,
            ran,
            str(in_todays_words(state.get("state")) or State.PREPARING),
            str(in_todays_words(state["reason"])) if state.get("reason") else None,
            _torch(proof),
        )


def _evidence(local_copy: LocalCopy, folder: str) -> tuple[tuple[PrecisionSeen, ...], JsonObject]:
    """Return the hook's observations in an attempt, and the worker's proof; each is empty if not recorded."""
    seen: list[PrecisionSeen] = []
    proof: JsonObject = {}
    for event in local_copy.record.marked_events(folder, b'"precision_seen"', b'"proof"'):
        values = event.values if event.kind == "evidence" else {}
        if isinstance(values.get("precision_seen"), dict):
            seen.append(PrecisionSeen.lenient(values["precision_seen"]))
        if isinstance(values.get("proof"), dict):
            proof = values["proof"]
    return tuple(seen), proof


def _torch(proof: JsonObject) -> str | None:
    key = proof.get("key")
    torch = key.get("torch") if isinstance(key, dict) else None
    return torch if isinstance(torch, str) else None


def _verdict(plan: Plan, ran: PrecisionSeen, attempt: AttemptPrecision) -> PrecisionVerdict:
    if attempt.seen:
        return judge(
            ran, plan.ladder, is_rehearsed=plan.rehearsed, trains_all=not trains_adapter(plan.method)
        )
    return on_rung(plan.ladder, attempt.rung, "the script takes")


def _sentence(
    verdict: PrecisionVerdict, ran: AttemptPrecision, attempts: tuple[AttemptPrecision, ...]
) -> str:
    """Return the verdict, with the failure of an earlier attempt if it led to a lower rung."""
    is_fine = verdict.kind in ("as-wanted", "lower-rung")
    earlier = [one for one in attempts if one.rung < ran.rung and one.reason]
    if verdict.kind == "lower-rung" and ran.takes_plan and earlier:
        last = earlier[-1]
        return f"{verdict.sentence}: attempt {last.attempt} failed on rung {last.rung} ({last.reason})"
    changed = "; it changed during the training" if len(ran.seen) > 1 else ""
    failed = f", and it failed nevertheless ({ran.reason})" if is_fine and _has_failed(ran) else ""
    return f"{verdict.sentence}{changed}{failed}"


def _has_failed(attempt: AttemptPrecision) -> bool:
    """Return whether an attempt ended by a failure that its precision may explain."""
    return attempt.reason in PRECISION_FAILURES


def _why_unknown(plan: Plan, attempts: tuple[AttemptPrecision, ...]) -> str:
    """Return the reason why the used precision is unknown."""
    if not attempts or attempts[-1].state in _NEW:
        return "nothing has run yet"
    if not plan.inject:
        return "nothing is recorded of the precision that ran: the start-up hook was off, and the script took nothing from the plan"
    if not is_terminal(attempts[-1].state):
        return "nothing is recorded of the precision yet: no optimizer step of torch was seen so far"
    return (
        "nothing is recorded of the precision that ran: no optimizer step of torch was seen, "
        "or the run is from a version that did not look"
    )
