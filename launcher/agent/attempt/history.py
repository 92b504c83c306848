"""The records of a run's earlier folders: its attempts, their ends, and the knobs that their scripts consumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, List, NamedTuple, Optional, Set, Tuple

from ..diagnosis import remedy
from ..record.run_progress import RunProgress, progress_of, step_in
from ..record.rundir import SESSION_LIMIT, RecordFolder, Run

if TYPE_CHECKING:
    from ..record.run_records import AttemptRecord, PreviousRecord, StateRecord

Records = List[Tuple["AttemptRecord", "StateRecord"]]

HELD = "held "  # prefix of a knob that the script consumed but sets itself


class History(NamedTuple):
    """(attempt.json, state.json) of each folder, oldest first, and the progress of the run in them.

    `prepared` is the record of how the run was prepared.
    """

    records: Records
    progress: RunProgress
    prepared: AttemptRecord

    @property
    def begun(self) -> int:
        """The number of attempts whose command was started."""
        return len(self.begun_states)

    @property
    def begun_states(self) -> List[StateRecord]:
        """The states of the attempts whose command was started, oldest first."""
        return [state for _, state in self.records if state.get("began")]

    @property
    def in_force(self) -> remedy.CurrentChanges:
        """The changes and the remedy that the next attempt starts with."""
        return remedy.in_force(self.records)

    @property
    def failure(self) -> Optional[remedy.AttemptFailure]:
        """The failure of the last attempt whose command was started; None if it has no failure or no attempt exists."""
        begun = self.begun_states
        return remedy.read_failure(begun[-1].get("failure")) if begun else None

    @property
    def save_s(self) -> float:
        """The longest time that an attempt took to save a checkpoint."""
        return max((state.get("save_s") or 0.0 for _, state in self.records), default=0.0)

    @property
    def consumed(self) -> Set[str]:
        """The knobs that the script reported in any attempt, including those marked HELD."""
        return {knob for _, state in self.records for knob in state.get("consumed") or []}

    @property
    def used_worker(self) -> bool:
        """Whether the script itself used the worker in any attempt."""
        return any(state.get("uses_worker") for _, state in self.records)

    def before_last_begun(self) -> Records:
        """Return the records before the last attempt whose command was started."""
        begun = [place for place, (_, state) in enumerate(self.records) if state.get("began")]
        return self.records[: begun[-1]]


def read_history(run: Run) -> History:
    """Read the records of all folders of a run."""
    folders = [run.folder(number) for number in run.numbers()]
    records = [(folder.read_attempt(), folder.read_state()) for folder in folders]
    return History(records, progress_of(run, is_live=False), run.prepared())


class Reached(NamedTuple):
    """How far a run's starts have got: the furthest step or checkpoint, None if none is known.

    `fruitless` is how many of the last starts used up the time of their job and got no further, or began anew.
    `origin` is the step at which the first start began that used up the time of its job.
    """

    furthest: Optional[int] = None
    fruitless: int = 0
    origin: Optional[int] = None

    def began_anew(self, begins_at: Optional[int]) -> bool:
        """Whether a later start began where the first one did: its time helps the next one nothing."""
        return self.origin is not None and begins_at is not None and begins_at <= self.origin


def reached(states: Iterable[StateRecord]) -> Reached:
    """Return how far the attempts of a run have got.

    `states` are those of the attempts whose command was started, oldest first. Progress is a later step, or a
    later checkpoint, than in any attempt before. A failure may set a run back, so the count begins again after
    a failure. An attempt counts only if a step or a checkpoint is known from an attempt before it. One that begins
    where the first did makes no progress: it may get a step further because its node was a little faster.
    """
    found = Reached()
    for state in states:
        if state.get("failure"):
            found = Reached()
            continue
        known = [step for step in (state.get("step"), state.get("checkpoint")) if step is not None]
        is_time_up = state.get("reason") == SESSION_LIMIT
        is_further = bool(known) and (found.furthest is None or max(known) > found.furthest)
        is_anew = found.furthest is not None and found.began_anew(state.get("begins_at"))
        if is_further:
            found = found._replace(furthest=max(known), fruitless=found.fruitless if is_anew else 0)
        if found.origin is None and is_time_up:
            found = found._replace(origin=state.get("begins_at"))
        if is_time_up and found.furthest is not None and (is_anew or not is_further):
            found = found._replace(fruitless=found.fruitless + 1)
    return found


def taken_knobs(consumed: Set[str]) -> Set[str]:
    """Return the knobs that the script takes from the launcher: consumed, and not set by the script itself."""
    return {knob for knob in consumed if not knob.startswith(HELD) and HELD + knob not in consumed}


def describe_previous(
    last: Optional[RecordFolder], seen: Optional[PreviousRecord]
) -> Optional[PreviousRecord]:
    """Return how the previous folder ended; None if it was not an attempt.

    `seen` is the parent process's observation, for an agent that died without recording its end.
    """
    if last is None or last.read_attempt().get("kind") == "prepare":
        return None
    state = last.read_state()
    previous: PreviousRecord = {
        "folder": last.number,
        "state": state.get("state"),
        "reason": state.get("reason"),
        "step": step_in(last),
    }
    if seen is not None:
        previous.update(seen)
    return previous
