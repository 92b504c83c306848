"""One attempt of a run: from its folder to the record of how it ended.

An attempt is one numbered folder, and this process is its only writer. If a failure has a remedy, the next
attempt begins at once in this process. The process locks the next folder before it unlocks the last one, so
that the run never lacks an owner. `attempts` makes the attempts one after the other.

The parts: `attempt_writer` writes the folder, `progress` has the reports of workers and log, `command_watch`
runs the command with `streams` and `stopping`, `judging` decides how it ended, and `retry` decides what
follows a failure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from ..attempt.attempt_record import Basis, compose
from ..attempt.attempt_writer import TAIL_BYTES, AttemptWriter
from ..attempt.fence import Fence
from ..attempt.history import describe_previous, reached, read_history, taken_knobs
from ..attempt.hook_parts import hook_parts, imitates_card
from ..attempt.judging import RENT_WORDS, CommandResult, judge, not_resumed, suspect
from ..attempt.progress import AttemptProgress
from ..attempt.stopping import (
    OF_SEGMENT,
    RENT_OVER,
    RentEnd,
    RunTime,
    StartInterruption,
    Stopping,
    reason_of,
    shutdown_reason,
)
from ..attempt.streams import listening
from ..attempt.training_command import Command, CommandStart
from ..diagnosis import remedy
from ..liveness import predecessor, restartable, run_state
from ..record import secret
from ..record.files import REFUSED, sync_tree
from ..record.rundir import SESSION_LIMIT, TERMINAL, RecordFolder, Run
from ..record.safe_open import unlink
from ..record.strict_json import JsonObject
from ..store import checkpoints, code_sync, script_checkpoint
from ..store.manifest import ShippingError
from ..store.secret_end import forget_secrets
from ..system import oom
from .checkpoint_evidence import CheckpointEvidence
from .command_watch import RunningCommand
from .container_words import PYTHON, has_image, words_of
from .host_watch import make_watch
from .retry import Retry
from .variables import by_us, interpreter_of, native_command, training_variables, variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..cards import lease
    from ..diagnosis.good_exit import Doubt
    from ..record.run_records import AttemptRecord, PreviousRecord, StateRecord, WorkerTrialRecord

RESTART = 75
NOT_STARTED = "command-not-found"
OUTPUTS_LOST = "outputs-lost"
NOT_BEGUN = 255
"""The exit status of Apptainer if it could not start the command in the image."""
SUPERSEDED = "superseded"
NO_ROOM_S = 1.0
TIME_UP = "the time of its job was up before it had ended"


class Supervisor:
    """One attempt from its folder to its end."""

    def __init__(
        self,
        run: Run,
        last: RecordFolder | None,
        seen: PreviousRecord | None,
        cards: lease.Taken | None = None,
    ) -> None:
        """Make the attempt's folder after the last one. Raises FileExistsError if another process was faster.

        `seen` is the parent's report on the last agent, `cards` are the cards of the run.
        """
        self.run = run
        self._last = last
        self.cards = cards
        self.plan = run.read_plan()
        self.secrets = secret.read(run)
        redactor = secret.Redactor(self.secrets.values())
        self.history = read_history(run)
        self.previous = redactor.redact(describe_previous(last, seen))
        self.progress = AttemptProgress(
            save_s=self.history.save_s,
            stop_grace_s=float(self.plan.get("stop_grace_s", 30.0)),
            hang_s=_seconds(self.plan.get("hang_minutes")),
            imitates_card=imitates_card(self.plan),
            only_warns=self.plan.get("guard") == "warn",
            redact=redactor.redact,
        )
        runtime = self.history.prepared.get("runtime") or {}
        limit_s = _seconds(self.plan.get("time_limit_minutes"))
        self.run_time = RunTime(self.history.progress.took_s, limit_s, RentEnd(run, runtime).ends_s)
        self.account = AttemptWriter(
            run.new_folder(last, checkpoints.sealed_now(run)),
            1 + self.history.begun,
            redactor,
            self.progress,
            self.run_time,
            is_rehearsed=self.plan.get("rehearsed") is True,
        )
        self.fence = Fence(run, self.account.folder)
        self.mending = Retry(run, self.plan, self.history, self.account)
        self.proofs = CheckpointEvidence(run, self.plan, self.history, self.account, self.progress)
        self.terminations: list[int] = []
        self.chosen = checkpoints.ChosenCheckpoint(None, None, {})
        self.record: AttemptRecord = {}
        self.oom_kills = oom.kills()
        self.lost: JsonObject = {}
        """The evidence of code that cannot be repaired; empty if the code is whole."""
        self.has_left = False  # whether the agent left the run without a record of its end

    def make_next(self) -> Supervisor:
        """Make the attempt that follows this one, then unlock this one's folder.

        Raises FileExistsError if the run has continued elsewhere.
        """
        following = type(self)(self.run, self.account.folder, None, self.cards)
        following.terminations = self.terminations
        self.account.folder.release()
        return following

    def supervise(self) -> int | None:
        """Run the attempt; return the agent's exit status, None if another attempt follows."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda number, _frame: self.terminations.append(number))
        interruption = StartInterruption(self.run, self.fence, self.terminations, self.beat)
        verdict = self.mending.settle()
        self._write_attempt()  # at once: the parent process waits for it, and checking a checkpoint takes long
        self._wait_for_predecessor(interruption)
        self._mend_code(interruption)
        self._choose_checkpoint(interruption)
        if self.chosen.path is not None or self.mending.in_force.remedy is not None:
            self._write_attempt()
        with contextlib.suppress(FileNotFoundError):  # the container's end is recorded now
            unlink(self.run.container_end)
        if self.previous:
            self.account.record("evidence", {"previous": self.previous})
        status = self._end_early(verdict)
        answered = self.mending.in_force.remedy
        waits = {"gpu-busy-exclusive": self._wait_for_cards, "disk-full": self._wait_for_room}
        if status is None and answered is not None and answered.name in waits:
            waits[answered.name](interruption)
            status = self._end_early(verdict)
        return self._train() if status is None else status

    def beat(self) -> None:
        """Write the heartbeat."""
        self.account.beat()

    # before the command starts

    def _write_attempt(self) -> None:
        """Write attempt.json, and make the folders that the script writes to."""
        run, prepared = self.run, self.history.prepared
        for folder in (run.artifacts, run.checkpoints, run.cache):
            os.makedirs(folder, exist_ok=True)
        runtime = prepared.get("runtime") or {}
        if self.cards is not None:
            runtime = {**runtime, "gpus": self.cards.gpus}
        in_force = self.mending.in_force
        basis = Basis(
            run, self.plan, prepared, runtime, in_force, self.previous, self.chosen, self._worker_trial()
        )
        self.record = compose(basis, self.account.folder, self.account.attempt)
        self.proofs.attempt = self.record
        self.account.write_attempt(self.record)

    def _wait_for_predecessor(self, interruption: StartInterruption) -> None:
        """Wait for the last agent to exit, in runtimes where no lock shows whether it is alive.

        Two trainings must not write into one folder.
        """
        last = self._last
        if last is None or not run_state.probe_of(self.run).writes_afar or predecessor.is_by_a_client(last):
            return
        predecessor_exit = predecessor.PredecessorExit(last, self.account.folder)
        with self.run_time.paused():
            while not predecessor_exit.is_over() and not interruption.is_due():
                time.sleep(0.1)

    def _worker_trial(self) -> WorkerTrialRecord | None:
        """Return the worker's part of `attempt.json` for a trial; None for a training."""
        return None

    def _trial_begun(self) -> JsonObject:
        """Return the trial's part of the start event; {} for a training."""
        return {}

    def _purpose(self) -> str | None:
        """Return the purpose of an attempt that is not the training itself; None for a training."""
        return None

    def _command(self) -> tuple[list[str], int]:
        """Return the words of the command, and the number of its processes."""
        ranks = int((self.plan.get("split") or {}).get("ranks") or 1)
        return [str(word) for word in self.plan["command"]], ranks

    def _mend_code(self, interruption: StartInterruption) -> None:
        """Compare the code with its manifest, and repair it, if the host may have stopped before it was on disk."""
        if run_state.probe_of(self.run).is_in_image:  # `serve` has done it: the image lacks the store
            return
        while code_sync.is_doubtful(self.run) and not self.lost and not interruption.is_due():
            with contextlib.suppress(ShippingError):  # while `gc` runs
                mended = code_sync.mend(self.run, interruption.is_due)
                if mended is not None and mended.lost:
                    self.lost = code_sync.words_of(self.run, mended)
                elif mended is not None and mended.paths:
                    self.account.record("evidence", code_sync.words_of(self.run, mended))

    def _choose_checkpoint(self, interruption: StartInterruption) -> None:
        """Tidy the earlier checkpoints while no script writes checkpoints, and choose the one to resume from."""
        folder = self.run.checkpoints
        tidied = checkpoints.tidy(folder, "checkpoints" in taken_knobs(self.history.consumed))
        with contextlib.suppress(checkpoints.CheckAbortedError):  # the attempt ends early
            self.chosen = checkpoints.choose(folder, interruption.is_due, checkpoints.late(self.run))
            checkpoints.set_aside_damaged(folder, self.chosen)
            self.progress.checkpoint = self.chosen.step
            self.mending.begin(self.chosen.step)
        torn = [*tidied.removed, *tidied.aside]
        evidence = {"torn": torn, "aside": tidied.aside, "damaged": self.chosen.damaged}
        if any(evidence.values()):
            self.account.record(
                "evidence", {"checkpoints": {name: value for name, value in evidence.items() if value}}
            )

    def _wait_for_cards(self, interruption: StartInterruption) -> None:
        """Acquire cards that accept a new context, waiting if necessary.

        Waiting time does not count as run time.
        """
        if self.cards is None:
            return
        from . import card_admission

        newest = checkpoints.newest(self.run.checkpoints)
        tries = remedy.tries(self.history.records, "gpu-busy-exclusive", newest)
        with self.run_time.paused():
            self.cards = card_admission.wait_for_cards(
                self.run, self.cards, self.account, interruption, tries, self._move
            )

    def _wait_for_room(self, interruption: StartInterruption) -> None:
        """Wait until the next checkpoint fits on the disk. Waiting time does not count as run time."""
        failure = self.history.failure
        if failure is None or failure.needs is None:
            return
        from .retry import wait_for_room

        newest = checkpoints.newest(self.run.checkpoints)
        tries = remedy.tries(self.history.records, "disk-full", newest)
        with self.run_time.paused():
            wait_for_room(self.run, failure.needs, self.account, interruption, tries)

    def _move(self, cards: lease.Taken) -> None:
        """Record the new cards of the run."""
        self.cards = cards
        self._write_attempt()

    def _end_early(self, verdict: remedy.FailureDecision | None) -> int | None:
        """End the attempt if its command must not start; return None if it may."""
        if self.fence.look():
            return self.leave()
        if (status := self._end_as_told()) is not None:
            return status
        wish, history = self.run.read_wish(), self.history
        missing = sorted(set(self.plan.get("secrets") or ()) - set(self.secrets))
        if wish != "run":
            return self._end("stopped", reason_of(wish), {})
        if self.terminations:
            self.account.say("resuming", shutdown_reason(self.run, self.terminations))
            return RESTART
        if self.lost:
            return self._end("failed", code_sync.LOST, self.lost)
        if verdict is not None and verdict.remedy is None:
            failure = self.mending.in_force.failure
            return self._give_up(verdict, {**failure.evidence()} if failure is not None else {})
        if self.run_time.limit == RENT_OVER and self.run_time.left_s <= self.progress.grace_s:
            return self._end("waiting", RENT_OVER, RENT_WORDS)
        if self.run_time.left_s <= 0:
            return self._end("stopped", "time-limit", {})
        if history.begun >= int(self.plan.get("attempts", 1)):
            return self._end("failed", "attempts-exhausted", {"attempts": history.begun})
        has_remedy = self.mending.in_force.remedy is not None
        if history.begun and not has_remedy and not self.mending.may_begin_again(history.consumed):
            return self._end(
                "failed", restartable.REASON, {"previous": self.previous, **restartable.EVIDENCE}
            )
        if missing:
            return self._end("waiting", "secret", {"secrets": "missing: " + ", ".join(missing)})
        return None

    # the command

    def _train(self) -> int | None:
        """Run the command and record its end; return the exit status, None if another attempt follows."""
        account, runtime = self.account, self.record["runtime"]
        with listening(self.run) as (listener, socket_path):
            # On disk before the command starts: an attempt counts as soon as it may have had an effect.
            account.has_begun = True
            account.say("running", self._purpose(), must=True)
            start = self._start(socket_path)
            try:
                command = self._begin(start)
            except OSError as error:
                why = self._why_not_started(start.words[0], error, start.variables)
                return self._end("failed", NOT_STARTED, why)
            begun = {"state": "running", "command": start.words, "pid": command.pid, "from": self.chosen.step}
            account.record("state", {**begun, **self._trial_begun()})
            stopping = Stopping(self.run, self.terminations, self._gains_by_another_start)
            host_watch = make_watch(self.run, self.plan, runtime.get("gpus") or (), account)
            running = RunningCommand(
                account, self.progress, self.fence, stopping, self.run_time, self.proofs, host_watch
            )
            outcome = running.run(command, listener)
        return self._conclude(outcome)

    def _start(self, socket_path: str) -> CommandStart:
        """Return how to start the command; on several nodes, how to start a member on each."""
        run, runtime, grace_s = self.run, self.record["runtime"], self.progress.grace_s
        if self._nodes > 1:
            from .members import start_of  # few runs have several

            return start_of(run, self.account.folder, self._nodes, grace_s)
        words, ranks = self._command()
        variables = training_variables(
            run,
            runtime,
            self.secrets,
            port=self.record["port"],
            ranks=ranks,
            grace_s=grace_s,
            attempt=self.account.folder.path,
            socket=socket_path,
            stacks=self.account.folder.stacks,
            hook=hook_parts(self.plan, self.record),
        )
        before = words_of(run, self.plan, socket_path)
        python = PYTHON if before else interpreter_of(runtime)
        words = [*before, *native_command(words, python, by_us(self.plan, ranks))]
        return CommandStart(
            words,
            run.code,
            variables,
            ranks,
            may_dump=not self.secrets,
            is_in_image=bool(before),
            stacks=self.account.folder.stacks,
        )

    def _begin(self, start: CommandStart) -> Command:
        """Start the command. Raises OSError."""
        if self._nodes <= 1:
            return Command(start)
        from .members import Members

        return Members(start, self.account.folder)

    @property
    def _nodes(self) -> int:
        return len(self.plan.get("nodes") or ())

    def _why_not_started(
        self, program: str, error: OSError, variables: Mapping[str, str | bytes]
    ) -> JsonObject:
        """Return the evidence of a command that could not be started."""
        from ..diagnosis.not_started import words_of_start

        path = os.fsdecode(variables.get("PATH", os.defpath))
        why, mend = words_of_start(program, error, self.run.code, path)
        return {"class": NOT_STARTED, "line": "%s: %s" % (program, error.strerror), "why": why, "mend": mend}

    # its end

    def _conclude(self, outcome: CommandResult) -> int | None:
        """Record how the command ended; return the agent's exit status, None if another attempt follows."""
        if self.fence.look():  # first: the code below may move checkpoints
            return self.leave()
        outcome = outcome._replace(uses_worker=outcome.uses_worker or self.history.used_worker)
        doubt = self._look_behind(outcome) if outcome.is_good_exit else None
        failure = self._failure_of(outcome)
        wish = outcome.wish
        if failure is not None:
            self.mending.set_aside(failure)
            wish = self.run.read_wish()  # a new wish forbids another attempt
        state, reason, evidence = judge(outcome, failure, doubt, wish, self.plan.get("steps"))
        # Slurm's own signal at the limit may end the script before its agent asks it to save.
        is_ended = state == "resuming" or (
            state == "failed" and failure is not None and failure.name == remedy.PREEMPTED
        )
        if is_ended and signal.SIGUSR1 in self.terminations:
            hopeless = self._why_not_again()
            if hopeless:
                return self._end("failed", hopeless["class"], {**evidence, **hopeless, "line": TIME_UP})
        if state == "resuming":
            self.account.say(state, reason, evidence=evidence)
            return RESTART
        if state == "failed" and failure is not None:
            return self._answer(failure, evidence)
        return self._end(state, reason, evidence)

    def _why_not_again(self) -> dict[str, str]:
        """Return why another start of the job would not help; {} if it may help."""
        if not self._may_begin_again():
            return restartable.EVIDENCE
        state: StateRecord = {
            "reason": SESSION_LIMIT,
            "step": self.progress.step,
            "begins_at": self.progress.begins_at,
            "checkpoint": self.progress.checkpoint,
        }
        fruitless = reached([*self.history.begun_states, state]).fruitless
        consumed = self.progress.consumed | self.history.consumed
        resumes = "resume" in taken_knobs(consumed) or self.progress.has_own_resume
        if fruitless < restartable.max_fruitless(resumes=resumes):
            return {}
        return restartable.without_progress(fruitless, self.run_time.took_s * max(1, self._nodes))

    def _gains_by_another_start(self) -> bool:
        """Whether to ask the command to save before the time of its job is up, so that another start continues.

        A start that began anew, or has got no further than an earlier one, uses all of its time: it may be the
        last.
        """
        if not self._may_begin_again():
            return False
        before = reached(self.history.begun_states)
        if before.furthest is None:
            return True
        return (self.progress.step or 0) > before.furthest and not before.began_anew(self.progress.begins_at)

    def _may_begin_again(self) -> bool:
        return self.mending.may_begin_again(self.progress.consumed | self.history.consumed)

    def _failure_of(self, outcome: CommandResult) -> remedy.AttemptFailure | None:
        """Return the failure of an attempt: seen while it ran, or diagnosed after a bad end."""
        if outcome.failure is not None or outcome.is_stop_asked:
            return outcome.failure
        if outcome.is_bad_end:
            self.progress.fail(self._diagnose(outcome))
        elif outcome.was_asked_to_end and not outcome.is_completed(self.plan.get("steps")):
            self.progress.fail(remedy.preempted(signal.SIGTERM))  # not by launcher; the script has saved
        if self.progress.failure is not None:
            self.account.rewrite_state()  # at once: if this agent dies now, its successor handles the failure
            self.proofs.keep_failure()
        return self.progress.failure

    def _look_behind(self, outcome: CommandResult) -> Doubt | None:
        """Judge an attempt with exit status 0: fail it if its failure is certain, else return the doubt, if any."""
        since, steps = self.progress.doubtful_from, self.plan.get("steps")
        failure, doubt = suspect(outcome, steps, since, lambda: self.account.log_tail(TAIL_BYTES))
        if failure is not None:
            self.progress.fail(failure)
        given = self.record.get("own_checkpoint")
        if failure is None and given is not None and not self.progress.has_own_resume:
            return not_resumed(os.path.relpath(given, self.run.code))
        return doubt

    def _diagnose(self, outcome: CommandResult) -> remedy.AttemptFailure:
        """Return the failure of a command that ended badly."""
        from ..diagnosis import (
            cause,  # the table of failures takes long to load, and most attempts do not need it
        )

        now = oom.kills()
        kills = None if now is None or self.oom_kills is None else now - self.oom_kills
        kills = kills if outcome.oom_kills is None else outcome.oom_kills
        log = self.account.log_tail(TAIL_BYTES) if outcome.log is None else outcome.log
        failure = cause.crash(log, outcome.code, outcome.signal, kills)
        has_advanced = outcome.step is not None and outcome.step > (self.chosen.step or 0)
        if failure.name == "checkpoint-corrupt" and not has_advanced:  # it resumed from that checkpoint
            failure = failure._replace(since=self.chosen.step)
        if failure.name == "gpu-busy-exclusive" and self.cards is not None:
            from . import card_admission

            failure = failure._replace(others=card_admission.others(self.run, self.cards))
        if failure.name == "unknown" and outcome.code == NOT_BEGUN and has_image(self.plan):
            from ..diagnosis.not_started import refusal_of_image

            refusal = refusal_of_image(log.decode("utf-8", "replace"))
            if refusal is not None:
                failure = failure._replace(why=refusal.words.why, mend=refusal.words.mend)
            if refusal is not None and refusal.is_certain:
                failure = failure._replace(name=NOT_STARTED, reason=None)
        if failure.name in ("unknown", "user-code-error"):
            from ..store import tree_files

            refused = tree_files.refused(log.decode("utf-8", "replace"), self.run.code)
            failure = cause.shared_file_refused(failure, refused) if refused is not None else failure
        environment, image = self.plan.get("host_environment"), self.plan.get("image")
        if environment is not None or (image and image.get("dockerfile") is None):
            failure = cause.with_own_packages(failure, environment)
        return self._with_room(failure) if failure.name == "disk-full" else failure

    def _with_room(self, failure: remedy.AttemptFailure) -> remedy.AttemptFailure:
        """Return a full disk's failure with the bytes that the next checkpoint needs.

        If the checkpoints' disk has room, another disk is full. A session of a service does not wait for room,
        because nothing will free any.
        """
        unsaved = self.progress.unsaved
        room = checkpoints.room(self.run.checkpoints, unsaved)
        if unsaved is None and not room.is_short:
            return failure._replace(is_elsewhere=True)
        why = "%s: %s" % (failure.why, room.words)
        return failure._replace(
            is_elsewhere=False, needs=None if OF_SEGMENT in os.environ else room.needed, why=why
        )

    def _answer(self, failure: remedy.AttemptFailure, evidence: JsonObject) -> int | None:
        """Record the answer to a failure; return the agent's exit status, None if another attempt follows."""
        may_mend = "remaining" not in evidence  # nothing may start beside remaining processes
        consumed = self.progress.consumed | self.history.consumed
        verdict = self.mending.answer(failure, consumed, may_mend=may_mend)
        if verdict.remedy is None or not may_mend:
            return self._give_up(verdict, evidence, may_wait=may_mend)
        status = self._end("resuming", failure.name, evidence, remedy=verdict.remedy.record())
        if self.has_left:
            return status
        needs_new_place = failure.name in ("no-gpu-in-container", "host-lost")
        may_leave_members = self._nodes > 1  # the job's script ends them before the next agent starts
        if (
            status
            or needs_new_place
            or may_leave_members
            or (self.terminations and self.run.read_wish() == "run")
        ):
            return RESTART
        return None

    def _give_up(
        self, verdict: remedy.FailureDecision, evidence: JsonObject, *, may_wait: bool = True
    ) -> int:
        """End a run whose failure has no remedy here, or let it wait for a client; return the exit status."""
        evidence = {**evidence, "mend": verdict.mend}
        needs = verdict.waits_for
        if needs == "card":
            from ..cards import lease

            evidence["lost"] = lease.lost_of(self.cards)
            needs = needs if evidence["lost"] else None
        if needs is None or not may_wait:
            return self._end("failed", verdict.reason, evidence)
        return self._end("waiting", needs, evidence)

    def leave(self) -> int:
        """Leave a run that has continued in a later folder; return the agent's exit status.

        The departure is recorded in this attempt's own folder; nothing else of the run is changed.
        """
        self.has_left = True
        evidence = {"goes_on_in": "%04d" % (self.account.folder.number + 1)}
        state = {"state": "interrupted", "reason": SUPERSEDED, "evidence": evidence}
        self.account.record("state", state)
        self.account.flush()
        self.account.say("interrupted", SUPERSEDED, evidence=evidence)
        return 0

    def _end(self, state: str, reason: str, evidence: JsonObject, **more: Any) -> int:
        """Record how the attempt ended, as soon as the disk takes it; return the agent's exit status.

        A run that its user stops does not wait for the disk: the recorded wish is enough to show how the run
        ended.
        """
        if state == "succeeded":
            unsaved = self._sync_outputs()
            if unsaved:
                state, reason, evidence = "failed", OUTPUTS_LOST, {**evidence, **unsaved}
        if not self.account.has_begun:  # nothing was trained: the last step is that of an earlier attempt
            self.progress.step, self.progress.loss, _ = self.history.progress
        if state in TERMINAL:
            evidence = {
                **evidence,
                **self._own_checkpoint(),
                **self._job_use(),
                **self._send_notice(state, reason),
            }
        self.account.record("state", {"state": state, "reason": reason, "evidence": evidence})
        with self.run_time.paused():  # the run has ended, though its disk may be full
            while not (self.account.flush() and self._is_recorded(state, reason, evidence, **more)):
                if self.run.read_wish() != "run":
                    self.beat()  # the heartbeat needs no free space, and its time is the time of the end
                    self._erase_secrets()
                    self.has_left = True
                    return 0
                if self.fence.look():
                    return self.leave()
                if self.terminations:  # a full disk on a host that shuts down
                    return RESTART
                self.beat()
                time.sleep(NO_ROOM_S)
        return 0

    def _sync_outputs(self) -> dict[str, str]:
        """Sync the outputs to disk, so that a success outlives a power cut.

        Return the failure if the disk cannot.
        """
        errors: list[OSError] = []

        def sync() -> None:
            try:
                for folder in (self.run.artifacts, self.run.checkpoints):
                    sync_tree(folder)
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=sync, daemon=True)
        thread.start()
        while thread.is_alive():  # gigabytes take minutes
            thread.join(0.1)
            self.beat()
        for error in errors:
            line = "%s: %s" % (error.filename or self.run.artifacts, error.strerror)
            why = "the training has ended well, but the disk did not take all of its outputs"
            return {
                "class": OUTPUTS_LOST,
                "line": line,
                "why": why,
                "mend": "check the disk of this host",
            }
        return {}

    def _job_use(self) -> JsonObject:
        """Return the use of the resources of a Slurm job as evidence; on several nodes, this one's are not all."""
        if "SLURM_JOB_ID" not in os.environ or self._nodes > 1 or not self.account.has_begun:
            return {}
        from ..system.job_use import job_use  # most runs are in no job

        use = job_use(self.run_time.took_s - self.history.progress.took_s)
        return {"used": use} if use else {}

    def _own_checkpoint(self) -> JsonObject:
        """Return the script's own checkpoint as evidence; after a whole training, else the last file that it wrote."""
        if self.progress.uses_worker:
            return {}
        step = self.progress.step or 0
        bad = script_checkpoint.first_bad(self.progress.failure)
        own = script_checkpoint.newest(self.run, step, bad)
        if own is None and self.progress.has_ended and bad is None:
            own = script_checkpoint.newest_file(self.run, step)
        return {"own_checkpoint": own._asdict()} if own is not None else {}

    def _send_notice(self, state: str, reason: str) -> dict[str, str]:
        """Run the job's command for the end, or call its webhook; return the failure as evidence."""
        words = [str(word) for word in self.plan.get("on_end") or ()]
        if not words:
            return {}
        from . import on_end  # few jobs have one

        runtime = self.record.get("runtime") or {}
        progress, plan = self.progress, self.plan
        values: on_end.EndValues = {
            "run": self.run.id,
            "job": plan.get("job"),
            "host": plan.get("host"),
            "attempt": self.account.attempt,
            "step": progress.step,
            "steps": plan.get("steps"),
            "loss": progress.loss,
            "rehearsed": plan.get("rehearsed") is True,
        }
        words = native_command(words, interpreter_of(runtime))
        notice = on_end.Notice(words, self.run.code, variables(self.run, runtime), self.secrets)
        begun = self.history.begun + self.account.has_begun
        return on_end.send_once(self.run, notice, on_end.EndNotice(state, reason, values), begun, self.beat)

    def _end_as_told(self) -> int | None:
        """Record the end that the last agent announced but did not record; return None without one."""
        if not self.plan.get("on_end"):
            return None
        from . import on_end

        mark = on_end.end_mark(self.run, self.history.begun)
        if not mark:
            return None
        self.progress.step, self.progress.loss = mark.get("step"), mark.get("loss")
        return self._end(mark["state"], str(mark.get("reason")), {"previous": self.previous})

    def _is_recorded(self, state: str, reason: str, evidence: JsonObject, **more: Any) -> bool:
        """Try to record the end; return False if the disk has no room.

        Secrets are erased before a terminal state.
        """
        account = self.account
        try:
            account.sync_events()
            if self.secrets and state in TERMINAL:
                account.say(
                    account.state, must=True
                )  # there is room, so the end can be written after the erasure
                evidence = {**evidence, **self._erase_secrets()}
            if run_state.probe_of(self.run).writes_afar:
                more = {**more, "sizes": account.sizes()}
            account.say(state, reason, must=True, evidence=evidence, **more)
        except OSError as error:
            if error.errno not in REFUSED:
                raise
            return False
        return True

    def _erase_secrets(self) -> dict[str, str]:
        """Erase the secrets of the run; return evidence if that failed."""
        try:
            forget_secrets(self.run)
        except OSError as error:
            return {"secrets": "not erased: %s" % error.strerror}
        return {}


def _seconds(minutes: Any) -> float | None:
    return None if minutes is None else 60.0 * float(minutes)
