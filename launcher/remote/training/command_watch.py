"""Run the command of an attempt: take in what it reports, stop it when it has to stop, return how it ended."""

from __future__ import annotations

import selectors
import signal
import socket
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ..diagnosis.remedy import Failure
from .account import Account, read_report
from .fence import Fence
from .host_watch import HostWatch
from .judging import Outcome
from .progress import News, Progress
from .proofs import Proofs
from .stopping import RunTime, Stopping
from .streams import Receiver, Streams
from .training_command import Command, end_leftovers

if TYPE_CHECKING:
    from ..diagnosis.logscan import LogScanner, Metric

TURN_S = 0.5
"""So often the agent of a run that says nothing looks up: for the wish, its successor, and how the host is."""
STOPPING_TURN_S = 0.1
LEFTOVER_GRACE_S = 3.0
STACKS_GRACE_S = 2.0  # for the stacks of a hang to arrive


class Running:
    """One attempt while its command runs."""

    def __init__(
        self,
        account: Account,
        progress: Progress,
        fence: Fence,
        stopping: Stopping,
        run_time: RunTime,
        proofs: Proofs,
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
        self._scanner: Optional[LogScanner] = None
        """What reads the log, from its first piece on: to load it takes as long as all else that an attempt begins with."""

    def run(self, command: Command, listener: socket.socket) -> Outcome:
        """Attend to a command until it and everything that it started have ended."""
        with selectors.DefaultSelector() as selector:
            receiver = Receiver(self.take_lines, self._take_output, self._finish_output, self._beat)
            streams = Streams(selector, listener, command.output, receiver)
            try:
                with streams.woken_by_signals():
                    while (status := command.reap()) is None:
                        streams.turn(STOPPING_TURN_S if self._stopping.is_asked else TURN_S)
                        self._take_from_nodes(command)
                        self._control(command)
                        self._host_watch.turn(streams)
            finally:
                self._host_watch.end(streams)
            remaining = self._end_leftovers(streams)
            self._take_from_nodes(command)
            streams.drain()
        self._note_failure(command)
        ended = command.ended(status)
        progress = self._progress
        return Outcome(
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
        )

    # what it reports

    def take_lines(self, lines: List[bytes]) -> None:
        """Take in lines of a worker and record them."""
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
        self._progress.liveness.note_sign()
        self._scan(self._account.write_output(piece))

    def _finish_output(self) -> None:
        self._scan(self._account.finish_output())
        if self._scanner is not None:
            self._learn(self._scanner, self._scanner.finish())

    def _scan(self, piece: bytes) -> None:
        """Read the next piece of the log."""
        if self._scanner is None and piece:
            from ..diagnosis.logscan import LogScanner

            self._scanner = LogScanner()
        if self._scanner is not None:
            self._learn(self._scanner, self._scanner.feed(piece))

    def _learn(self, scanner: LogScanner, metrics: List[Metric]) -> None:
        """Record what was read from the log."""
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

    def _react(self, news: News) -> None:
        """Do what a report makes necessary."""
        if news.has_new_state:
            self._account.say_again()
        if news.failure is not None:
            self._give_up(news.failure, news.grace_s)
        if news.has_proof:
            self._proofs.keep_proof()

    def _give_up(self, failure: Failure, grace_s: float) -> None:
        """Take the attempt for failed, and have its command killed after a grace."""
        if self._progress.fail(failure):
            self._stopping.give_up(grace_s)
            self._account.say_again()  # at once: if this agent dies now, its successor deals with the failure
            self._proofs.keep_failure()

    def _beat(self) -> None:
        self._account.beat(self._run_time.ran_s)

    # how it is stopped

    def _control(self, command: Command) -> None:
        """Pass on a request to stop, notice a hang, and kill a command that is overdue or whose run has gone on."""
        stopping, progress = self._stopping, self._progress
        if self._fence.is_crossed():
            stopping.give_up(0.0)
        if stopping.begins(progress.grace_s, self._run_time):
            self._account.say("stopping", stopping.shutdown_reason if stopping.wish == "run" else None)
            self._account.record("state", {"state": "stopping", "wish": stopping.wish})
            if stopping.wish != "cancel" and progress.failure is None:
                self._signal(command, signal.SIGTERM)
        self._note_failure(command)
        if not stopping.is_asked and progress.failure is None and progress.liveness.is_hung():
            self._give_up_hung(command)
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

    def _give_up_hung(self, command: Command) -> None:
        """Take the attempt for hung, and record what its processes wait for; their stacks go to the log."""
        step, silent_s = self._progress.step, self._progress.liveness.silent_s
        hang = {"silent_s": round(silent_s, 1), "processes": command.ask_for_stacks(self._host_watch.pids)}
        self._account.record("evidence", {"hang": hang}, step)
        step_s = self._progress.liveness.step_s or 0.0
        failure = Failure(
            "hang",
            line="step %s: nothing since for %.0f s" % (step, silent_s),
            why="no step and no output for %.0f s, although a step takes %.3g s" % (silent_s, step_s),
            mend="read the stacks at the end of the log: they show what each process waits for",
        )
        self._give_up(failure, STACKS_GRACE_S)

    def _end_leftovers(self, streams: Streams) -> List[Dict[str, Any]]:
        """End everything that the command left behind, while its pipes are read; return what could not be ended.

        It has what is left of the grace. Processes of an attempt that has failed have none: they would save its bad state.
        Nor do those of a run that has gone on without them.
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
