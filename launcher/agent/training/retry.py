"""Answer a failure: set aside the checkpoints that it has spoilt, free or await disk space, and choose a remedy."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Optional, Set

from ..attempt.attempt_writer import AttemptWriter
from ..attempt.history import History, Records, taken_knobs
from ..attempt.stopping import StartInterruption
from ..diagnosis import remedy
from ..liveness import run_state
from ..record.rundir import Run
from ..store import checkpoints, script_checkpoint

if TYPE_CHECKING:
    from ..record.run_records import ChangesRecord, PlanRecord


class Retry:
    """Decides what follows the failure of one attempt, and records the remedy."""

    def __init__(self, run: Run, plan: PlanRecord, history: History, account: AttemptWriter) -> None:
        """Begin with the changes that the earlier attempts have led to."""
        self._run = run
        self._plan = plan
        self._history = history
        self._account = account
        self.in_force = history.in_force

    def may_begin_again(self, consumed: Set[str]) -> bool:
        """Whether the script can be restarted: it asked where to resume from, or the job allows it."""
        return bool(self._plan.get("restart")) or "resume" in taken_knobs(consumed)

    def settle(self) -> remedy.FailureDecision | None:
        """Decide on a failure if the last agent died before it decided; return None if no such failure exists."""
        failure = self.in_force.failure
        if failure is None:
            return None
        self.set_aside(failure)
        history = self._history
        verdict = self._decide(failure, history.before_last_begun(), history.begun, history.consumed)
        self._make_room(failure, history.consumed, prunes=verdict.remedy is not None)
        if verdict.remedy is not None:
            self._record(history.begun, failure, verdict.remedy)
            changes: ChangesRecord = {**self.in_force.changes, **verdict.remedy.changes}
            self.in_force = remedy.CurrentChanges(changes, verdict.remedy, None)
        return verdict

    def answer(
        self, failure: remedy.AttemptFailure, consumed: Set[str], *, may_mend: bool
    ) -> remedy.FailureDecision:
        """Decide what follows a failure of this attempt, whose spoilt checkpoints were set aside before.

        If there is a remedy and `may_mend` is true, also record it and free disk space for the next attempt.
        """
        self._make_room(failure, consumed, prunes=False)
        history = self._history
        verdict = self._decide(failure, history.records, history.begun + 1, consumed)
        if verdict.remedy is not None and may_mend:
            self._make_room(failure, consumed, prunes=True)
            self._record(self._account.attempt, failure, verdict.remedy)
        return verdict

    def begin(self, checkpoint: Optional[int]) -> None:
        """Add the checkpoint at which the attempt begins to the remedy in force."""
        found = self.in_force.remedy
        if found is not None:
            resumes = "resume" in taken_knobs(self._history.consumed)
            begun = remedy.begun(found, checkpoint if resumes else self._own_step())
            self.in_force = self.in_force._replace(remedy=begun)

    def set_aside(self, failure: remedy.AttemptFailure) -> None:
        """Move the checkpoints that a failure has spoilt to a place where no script looks."""
        if failure.since is not None:
            names = checkpoints.set_aside(self._run.checkpoints, failure.since)
            if names:
                self._account.record("evidence", {"set-aside": names})

    def _make_room(self, failure: remedy.AttemptFailure, consumed: Set[str], *, prunes: bool) -> None:
        """On a full disk, remove crash leftovers; with `prunes`, also old checkpoints.

        Even the record of the failure needs space.
        """
        if failure.name == "disk-full":
            folder = self._run.checkpoints
            tidied = checkpoints.tidy(folder, "checkpoints" in taken_knobs(consumed))
            removed = tidied.removed + (
                checkpoints.prune(folder, checkpoints.late(self._run)) if prunes else []
            )
            evidence = {"pruned": removed, "aside": tidied.aside}
            if any(evidence.values()):
                self._account.record(
                    "evidence", {"checkpoints": {name: value for name, value in evidence.items() if value}}
                )

    def _decide(
        self, failure: remedy.AttemptFailure, earlier: Records, begun: int, consumed: Set[str]
    ) -> remedy.FailureDecision:
        """Return the decision on a failure after `begun` attempts.

        `earlier` are the records before the failed attempt.
        """
        knobs = taken_knobs(consumed)
        newest = checkpoints.newest(self._run.checkpoints)
        return remedy.decide(
            remedy.FailedAttempt(
                failure=failure,
                plan=self._plan,
                changes=self.in_force.changes,
                consumed=knobs,
                may_begin_again=self.may_begin_again(consumed),
                attempts_left=int(self._plan.get("attempts", 1)) - begun,
                checkpoint=newest if "resume" in knobs else self._own_step(),
                tries=remedy.tries(earlier, failure.name, newest),
                is_in_container=run_state.probe_of(self._run).is_in_image,
            )
        )

    def _own_step(self) -> Optional[int]:
        """Return the step from which a script's own Trainer begins again; None if it begins anew."""
        own = script_checkpoint.for_the_hook(self._run, self._plan, is_asked=False)
        return own.step if own is not None else None

    def _record(self, attempt: int, failure: remedy.AttemptFailure, found: remedy.Remedy) -> None:
        values = {"attempt": attempt, **failure.evidence(), **found.record()}
        self._account.record("remedy", values, failure.step)


BACK_OFF_S = (0.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The least wait in seconds, by failures in a row. Free space alone proves nothing: a quota may forbid its use."""
LOOK_S = 3.0


def back_off_s(tries: int) -> float:
    """Return the least wait after this number of failures since the last checkpoint, in seconds."""
    return BACK_OFF_S[min(max(tries, 1), len(BACK_OFF_S)) - 1]


def wait_for_room(
    run: Run, needed: int, account: AttemptWriter, interruption: StartInterruption, tries: int
) -> None:
    """Wait for `needed` free bytes; record the free and the needed bytes.

    The least wait grows with `tries`, the number of failures.
    """
    earliest_s = time.monotonic() + back_off_s(tries)
    said: Optional[checkpoints.Room] = None
    while not interruption.is_due():
        room = checkpoints.Room(shutil.disk_usage(run.checkpoints).free, needed)
        if room.free >= needed and time.monotonic() >= earliest_s:
            return
        if said is None or abs(room.free - said.free) > needed // 10:
            said = room
            account.say("resuming", "disk", evidence={"disk": room.words})
            account.record("evidence", {"disk": room.words})
        interruption.pause(LOOK_S)
