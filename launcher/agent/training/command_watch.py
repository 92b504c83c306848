"""Run the command of an attempt: receive its reports, stop it when necessary, return how it ended."""

from __future__ import annotations

import selectors
import signal
import socket
import time
from typing import TYPE_CHECKING, List, Optional

from ..attempt.attempt_writer import TAIL_BYTES, AttemptWriter, read_report
from ..attempt.fence import Fence
from ..attempt.hang_watch import BUSY, IDLE, UNSEEN
from ..attempt.judging import CommandResult
from ..attempt.lingering_processes import Lingering
from ..attempt.progress import AttemptProgress, ProgressChange
from ..attempt.stopping import RunTime, Stopping
from ..attempt.streams import Receiver, Streams
from ..attempt.training_command import Command, End, end_leftovers
from ..diagnosis.remedy import AttemptFailure
from ..record.strict_json import JsonObject
from ..system import process
from ..system.process import ProcessProof
from ..system.process_use import COUNTED
from .checkpoint_evidence import CheckpointEvidence
from .host_watch import HostWatch

if TYPE_CHECKING:
    from ..logs.log_scanner import LoggedMetric, LogScanner

TURN_S = 0.5
"""How often an agent checks its run's wish, its successor and its host when the training is silent."""
STOPPING_TURN_S = 0.1
LEFTOVER_GRACE_S = 3.0
STACKS_GRACE_S = 2.0  # for the stacks of a hang to arrive
WORK_S = 2.0
"""Output this long after the end of the main threads is work of other threads, not an exit message."""
_GRAVER = {None: 0, UNSEEN: 1, BUSY: 1, IDLE: 2}


class RunningCommand:
    """One attempt while its command runs."""

    def __init__(
        self,
        account: AttemptWriter,
        progress: AttemptProgress,
        fence: Fence,
        stopping: Stopping,
        run_time: RunTime,
        proofs: CheckpointEvidence,
        host_watch: HostWatch,
    ) -> None:
        """Begin before the command has reported anything."""
        self._account = account
        self._progress = progress
        self._fence = fence
        self._stopping = stopping
        self._run_time = run_time
        self._proofs = proofs
        self._host_watch = host_watch
        self._named: Optional[str] = None
        self._said: Optional[bytes] = None
        """The end of the log before stacks were requested."""
        self._heard_s = 0.0
        """The time of the last report or output."""
        self._lingering: Optional[Lingering] = None
        self._scanner: Optional[LogScanner] = None
        """Reads the log. It is imported with the first piece, because the import takes long."""

    def run(self, command: Command, listener: socket.socket) -> CommandResult:
        """Attend to a command until it and all processes that it started have ended."""
        with selectors.DefaultSelector() as selector:
            receiver = Receiver(self.take_lines, self._take_output, self._finish_output, self._beat)
            streams = Streams(selector, listener, command.output, receiver)
            try:
                with streams.woken_by_signals():
                    while (status := command.reap()) is None:
                        streams.turn(STOPPING_TURN_S if self._stopping.is_asked else TURN_S)
                        self._take_from_nodes(command)
                        self._take_stacks(command)
                        self._control(command)
                        self._host_watch.turn(streams)
            finally:
                self._host_watch.end(streams)
            remaining = self._end_leftovers(streams)
            self._take_from_nodes(command)
            self._take_stacks(command)
            streams.drain()
        self._note_failure(command)
        progress = self._progress
        ended = self._own_end(command.pid, command.ended(status))
        return CommandResult(
            code=ended.code,
            signal=ended.signal,
            log=ended.log,
            oom_kills=ended.oom_kills,
            remaining=remaining,
            is_stop_asked=self._stopping.is_asked,
            wish=self._stopping.wish,
            failure=progress.failure,
            step=progress.step,
            marker=progress.marker,
            is_marked=progress.is_marked,
            was_asked_to_end=progress.was_asked_to_end,
            uses_worker=progress.uses_worker,
            lost_loss=progress.lost_loss(self._scanner.last_loss if self._scanner is not None else None),
            is_without_step=progress.is_without_step,
            is_cut_short=progress.is_cut_short,
            is_off_card=progress.is_off_card,
            shutdown_reason=self._stopping.shutdown_reason,
            lingered=self._lingering.words if self._lingering is not None and not progress.failure else None,
            is_status_unknown=self._was_killed(command.pid),
            zero_shares=progress.zero_shares,
        )

    def _was_killed(self, pid: int) -> bool:
        return self._lingering is not None and self._lingering.was_killed(pid)

    def _own_end(self, pid: int, end: End) -> End:
        """Return how the command ended, or would have ended without its lingering processes.

        If the command itself lingered, or succeeded, the end of its log is that before the stacks. If a shell
        failed after a lingering process, it is the end of the whole log, as usual.
        """
        if self._lingering is None or end.log is not None:
            return end
        if self._was_killed(pid):
            has_failed = self._lingering.has_failed(pid) and not self._progress.is_marked
            end = End(int(has_failed), None, None, end.oom_kills)
        return end._replace(log=self._said) if self._lingering.has(pid) or end.code == 0 else end

    # its reports

    def take_lines(self, lines: List[bytes]) -> None:
        """Process lines of a worker and record them."""
        self._heard_s = time.monotonic()
        reports = []
        for line in lines:
            report = read_report(line)
            event = report.event
            if event is not None:
                news = self._progress.learn(event)
                if news is not None:
                    self._react(news)
                if event["kind"] == "beat":  # a sign of life once a second, not worth a record
                    continue
            reports.append(report)
        self._account.write_reports(reports)

    def _take_from_nodes(self, command: Command) -> None:
        lines, output = command.from_nodes()
        if lines:
            self.take_lines(lines)
        if output:
            self._take_output(output)

    def _take_output(self, piece: bytes) -> None:
        if self._lingering is not None and self._lingering.is_over:
            self._said = None
        self._heard_s = time.monotonic()
        self._progress.liveness.note_sign()
        self._scan(self._account.write_output(piece))

    def _take_stacks(self, command: Command) -> None:
        """Copy stacks to the log; they are no sign of life."""
        stacks = command.take_stacks()
        if stacks:
            self._scan(self._account.write_output(stacks))

    def _finish_output(self) -> None:
        self._scan(self._account.finish_output())
        if self._scanner is not None:
            self._learn(self._scanner, self._scanner.finish())

    def _scan(self, piece: bytes) -> None:
        """Read the next piece of the log."""
        if self._scanner is None and piece:
            from ..logs.log_scanner import LogScanner

            self._scanner = LogScanner()
        if self._scanner is not None:
            self._learn(self._scanner, self._scanner.feed(piece))

    def _learn(self, scanner: LogScanner, metrics: List[LoggedMetric]) -> None:
        """Record the metrics and the divergence that were read from the log."""
        if self._progress.learn_log_metrics(metrics):
            self._account.write_events(
                [
                    {"kind": "metric", "step": step, "values": values, "source": "log"}
                    for step, values in metrics
                ]
            )
        if scanner.divergence is not None:
            news = self._progress.learn_divergence(scanner.divergence)
            if news is not None:
                self._react(news)

    def _react(self, news: ProgressChange) -> None:
        """Act on a report."""
        if news.has_new_state:
            self._account.rewrite_state()
        if news.failure is not None:
            self._give_up(news.failure, news.grace_s)
        if news.has_proof:
            self._proofs.keep_proof()

    def _give_up(self, failure: AttemptFailure, grace_s: float) -> None:
        """Fail the attempt, and kill its command after a grace."""
        if self._progress.fail(failure):
            self._stopping.give_up(grace_s)
            self._account.rewrite_state()  # at once: if this agent dies now, its successor handles the failure
            self._proofs.keep_failure()

    def _beat(self) -> None:
        self._account.beat()

    # stopping it

    def _control(self, command: Command) -> None:
        """Pass on a stop request, notice a hang, and kill an overdue or superseded command."""
        stopping, progress = self._stopping, self._progress
        if self._fence.is_crossed():
            stopping.give_up(0.0)
        if stopping.begins(progress.grace_s, self._run_time):
            self._account.say("stopping", stopping.shutdown_reason if stopping.wish == "run" else None)
            self._account.record("state", {"state": "stopping", "wish": stopping.wish})
            if stopping.wish != "cancel" and progress.failure is None:
                self._signal(command, signal.SIGTERM)
        self._note_failure(command)
        if not stopping.is_asked and progress.failure is None:
            self._attend_to_silence(command)
        if stopping.must_kill():
            self._signal(command, signal.SIGKILL)

    def _signal(self, command: Command, number: int) -> None:
        proofs = command.send(number)
        if proofs:
            self._account.record("evidence", {"signalled": proofs})

    def _note_failure(self, command: Command) -> None:
        failure = command.failure()
        if failure is not None and self._progress.failure is None:
            self._give_up(failure, 0.0)

    # its silence

    def _attend_to_silence(self, command: Command) -> None:
        """Check what a silent command does, record it, and end the command once it hangs or lingers."""
        liveness = self._progress.liveness
        if self._lingering is not None and not self._lingering.is_over:
            self._named = None
            liveness.note_sign()  # a new silence begins
            proofs = self._lingering.turn()
            if proofs:
                self._account.record("evidence", {"signalled": proofs})
            return
        if liveness.is_look_due():
            use = command.use(self._host_watch.pids)
            liveness.look(use, is_card_used=self._host_watch.take_card_use())
        doing = liveness.doing
        if _GRAVER[doing] > _GRAVER[self._named]:
            self._name_silence(command, doing)
        self._named = doing
        if liveness.is_hung():
            self._end_silent(command)

    def _name_silence(self, command: Command, doing: Optional[str]) -> None:
        """Record what a silent command's processes do and wait for; idle ones must print their stacks."""
        liveness = self._progress.liveness
        silence: JsonObject = {"silent_s": round(liveness.silent_s, 1), "doing": doing}
        if doing == IDLE:
            self._said = self._account.log_tail(TAIL_BYTES)
            liveness.await_answer()
        if doing != UNSEEN:
            silence["processes"] = command.wait_points(self._host_watch.pids, asks_sleeping=doing == IDLE)
        self._account.record("evidence", {"silence": silence}, self._progress.step)
        self._beat()

    def _end_silent(self, command: Command) -> None:
        """End a command that has been silent for too long: as hung, unless its script has ended.

        A training in a thread continues after the main thread has ended. If it does not report its end, it
        counts as hung.
        """
        liveness, spared = self._progress.liveness, self._host_watch.pids
        # A script with a known pace may wait for its own child processes no longer than for anything else.
        ended = command.lingering(spared, spares_parents=not liveness.has_pace)
        is_stuck = self._lingering is not None and any(self._lingering.was_killed(one.pid) for one in ended)
        is_done = self._progress.is_marked and self._progress.has_ended
        worked_on = not self._progress.has_ended and self._heard_s > command.ended_s(ended) + WORK_S
        if (ended or is_done) and not is_stuck and not worked_on:
            if liveness.has_pace:  # judged again without a pace, in an hour: an upload may still run
                liveness.rest()
            else:
                self._end_lingering(command, ended)
        else:
            self._give_up_hung(command)

    def _end_lingering(self, command: Command, ended: List[process.Process]) -> None:
        """End the processes of a script that has ended, with its own exit status where that is possible."""
        liveness = self._progress.liveness
        lingers = {"silent_s": round(liveness.silent_s, 1), "pids": [one.pid for one in ended]}
        self._account.record("evidence", {"lingers": lingers}, self._progress.step)
        leader = process.find(command.pid)
        processes = ended or ([leader] if leader is not None else [])
        self._lingering = Lingering(processes, liveness.silent_s, command.leaves_by)
        liveness.note_sign()  # a new silence begins

    def _give_up_hung(self, command: Command) -> None:
        """Fail the attempt as hung, and record what its processes wait for; their stacks go to the log."""
        progress = self._progress
        step, liveness = progress.step, progress.liveness
        hang = {
            "silent_s": round(liveness.silent_s, 1),
            "processes": command.ask_for_stacks(self._host_watch.pids),
        }
        self._account.record("evidence", {"hang": hang}, step)
        failure = hang_failure(step, liveness.silent_s, liveness.step_s, has_ended=progress.has_ended)
        self._give_up(failure, STACKS_GRACE_S)

    def _end_leftovers(self, streams: Streams) -> List[ProcessProof]:
        """End all processes that the command left behind; return those that survived.

        Their pipes are read until then. They get the rest of the grace. Processes of a failed attempt get
        none, because they would save its bad state; nor do those of a run that has continued elsewhere.
        """
        grace_left_s = self._stopping.grace_left_s
        grace_s = LEFTOVER_GRACE_S if grace_left_s is None else grace_left_s
        if self._progress.failure is not None or self._fence.look():
            grace_s = 0.0
        leftovers = end_leftovers(grace_s, lambda: streams.turn(0.02), self._host_watch.pids)
        if leftovers.proofs or leftovers.remaining:
            self._account.record("evidence", {"ended": leftovers.proofs, "remaining": leftovers.remaining})
        if leftovers.servers:
            self._account.record("evidence", {"handed_over": leftovers.servers})
        return leftovers.remaining


def hang_failure(
    step: Optional[int], silent_s: float, step_s: Optional[float], *, has_ended: bool
) -> AttemptFailure:
    """Return the failure of a command that has been silent for too long; `step_s` is None without a pace."""
    if step_s is not None:
        why = "no step and no output for %.0f s, although a step takes %.3g s" % (silent_s, step_s)
    else:
        phase = "after the end of its training" if has_ended else "before its second step"
        nothing = "no output, no CPU time, and no bytes of %s for %.0f s" % (COUNTED, silent_s)
        why = "%s it did nothing: %s" % (phase, nothing)
    mend = "read the stacks at the end of the log: they show what each process waits for"
    if step_s is None:
        mend += "; for a wait that is meant to be longer, set hang_minutes"
    where = "no step: nothing" if step is None else "step %d: nothing since" % step
    return AttemptFailure("hang", "%s for %.0f s" % (where, silent_s), why, mend)
