"""An attempt of `launch verify`: one trial, after which the next one begins.

Lease, container, log, kills and clean-up are those of any attempt. A trial's result is in its state, so a
restarted agent repeats only the trial in which its predecessor died.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..attempt.history import Records
from ..attempt.judging import NOTHING_ON_CARD, CommandResult, judge
from ..diagnosis import remedy
from ..record.strict_json import JsonObject
from . import trials
from .supervise import RESTART, Supervisor

if TYPE_CHECKING:
    from ..attempt.stopping import StartInterruption
    from ..cards import lease
    from ..record.run_records import PreviousRecord, StateRecord, WorkerTrialRecord
    from ..record.rundir import RecordFolder, Run

BUSY = "gpu-busy-exclusive"


class TrialSupervisor(Supervisor):
    """One trial from its folder to its end."""

    def __init__(
        self,
        run: Run,
        last: RecordFolder | None,
        seen: PreviousRecord | None,
        cards: lease.Taken | None = None,
    ) -> None:
        """Make the folder of the next trial."""
        super().__init__(run, last, seen, cards)
        self.trial = trials.next_trial(self.plan, trials.ended_trials(self.history.records))
        changes = {} if self.trial is None else self.trial.changes()
        waits = (
            remedy.Remedy(BUSY, {}, None, "waits for the card") if _was_busy(self.history.records) else None
        )
        self.mending.in_force = remedy.CurrentChanges(changes, waits, None)

    def _end_early(self, verdict: remedy.FailureDecision | None) -> int | None:
        if self.trial is None:  # the last agent died between the last trial and the end of the run
            return self._end_run(trials.ended_trials(self.history.records), {})
        return super()._end_early(verdict)

    def _choose_checkpoint(self, interruption: StartInterruption) -> None:
        """Choose no checkpoint: each trial begins at step 0."""

    def _worker_trial(self) -> WorkerTrialRecord | None:
        trial = self.trial
        if trial is None:
            return None
        ladder = self.plan["ladder"]
        verification, is_batch = self.plan["verification"], trial.kind == trials.BATCH
        return {
            "kind": trial.kind,
            "steps": trials.BATCH_STEPS if is_batch else int(verification["steps"]),
            "held": 0 if is_batch else int(verification["held"]),
            "folder": os.path.join(self.run.artifacts, "trials"),
            "is_reference": trial.kind == trials.RUNG and trials.is_reference(ladder[trial.rung]),
        }

    def _trial_begun(self) -> JsonObject:
        worker_trial = self._worker_trial()
        if self.trial is None or worker_trial is None:
            return {}
        steps = None if self.trial.kind == trials.CARD else worker_trial["steps"]
        return {**self.trial.changes(), "steps": steps}

    def _purpose(self) -> str | None:
        return None if self.trial is None else "verifying, %s" % self.trial.title(len(self.plan["ladder"]))

    def _command(self) -> tuple[list[str], int]:
        if self.trial is not None and self.trial.kind == trials.CARD:
            return ["python", "-m", "launcher_worker.trials.card"], 1
        return super()._command()

    def _conclude(self, outcome: CommandResult) -> int | None:
        """Record the result of the trial; return the agent's exit status, None if another one follows."""
        assert self.trial is not None  # noqa: S101 - without a trial no command was started
        failure = self._failure_of(outcome) or self._missing(outcome)
        if failure is not None and self.progress.fail(failure):
            self.account.rewrite_state()
        state, reason, evidence = judge(outcome, failure, None, self.run.read_wish(), None)
        if state in ("stopped", "stop-incomplete"):
            return self._end(state, reason, evidence)
        if state == "resuming":
            self.account.say(state, reason, evidence=evidence)
            return RESTART
        measured = self.progress.trial if failure is None else None
        result = trials.GOOD if failure is None else failure.name
        evidence_of_failure = failure.evidence() if failure is not None else {}
        values = {**self.trial.changes(), "result": result, "measured": measured, **evidence_of_failure}
        self.account.record("trial", values)
        if outcome.remaining:  # nothing may start beside remaining processes
            return self._end("failed", "processes-remain", evidence, trial=measured)
        now: StateRecord = {
            "trial": measured,
            "failure": self.progress.failure and self.progress.failure.record(),
            "consumed": sorted(self.progress.consumed),
        }
        ended = trials.ended_trials([*self.history.records, (self.record, now)])
        self._keep(ended)
        if trials.next_trial(self.plan, ended) is None:
            return self._end_run(ended, evidence, trial=measured)
        status = self._end("resuming", "next-trial", evidence, trial=measured)
        if status or self.has_left:
            return status
        return RESTART if self.terminations else None

    def _missing(self, outcome: CommandResult) -> remedy.AttemptFailure | None:
        """Return why a command that ended well was not a valid trial; None if it was valid."""
        if outcome.is_stop_asked:
            return None
        if outcome.is_off_card and self.trial is not None and self.trial.kind != trials.CARD:
            return remedy.AttemptFailure("not-rehearsable", None, NOTHING_ON_CARD)
        if self.progress.trial is None:
            why = "the command ended without a training step that launcher could follow"
            mend = "let the script take the plan's precision   launch verify … --adapt"
            return remedy.AttemptFailure(trials.NOT_VERIFIABLE, None, why, mend)
        if self.trial is not None and self.trial.kind == trials.RUNG:
            return trials.too_short(self.progress.trial, self.plan["verification"])
        return None

    def _keep(self, ended: list[trials.FinishedTrial]) -> None:
        """Keep the measurements of this rung's trials on the host; a failed rung has no valid ones."""
        assert self.trial is not None  # noqa: S101 - as above
        if self.trial.kind != trials.CARD:
            measured = trials.measurement(ended, self.trial.rung)
            if measured is not None:
                self.proofs.keep_measured(measured)
            elif trials.is_refuted(ended, self.trial):
                self.proofs.keep_refuted()

    def _end_run(self, ended: list[trials.FinishedTrial], evidence: JsonObject, **more: Any) -> int:
        """Record the end of the verification: it has succeeded if the job trains in some precision."""
        if trials.best(ended) is not None:
            return self._end("succeeded", "verified", evidence, **more)
        failed = next((one for one in ended if one.result != trials.GOOD), None)
        reason = trials.NOT_VERIFIABLE if failed is None else failed.result
        failure = self.progress.failure
        mend = {"mend": failure.mend} if failure is not None and failure.name == reason else {}
        return self._end("failed", reason, {**evidence, **mend}, **more)


def _was_busy(records: Records) -> bool:
    """Whether the last trial failed because another process has the card."""
    failure = remedy.read_failure(records[-1][1].get("failure")) if records else None
    return failure is not None and failure.name == BUSY
