"""The agent's verb `member RUN NUMBER FIRST GRACE`: the part of an attempt on one node of several.

It starts the command with this node's ranks, opens the socket for its workers, and ends all of it. It writes
their reports and output to the node's folder, where the run's agent on node FIRST reads them. It follows that
agent's orders, which are lines of its standard input. When the input closes, the agent has died or is
unreachable, and the member ends its command. If the member itself is killed, its guard ends the command.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from typing import List, Set

from ..attempt.attempt_writer import Report, read_report
from ..attempt.fence import Fence
from ..attempt.hook_parts import hook_parts
from ..attempt.progress import NODE
from ..attempt.streams import Receiver, Streams, listening
from ..attempt.training_command import Command, CommandStart, end_leftovers
from ..liveness.slurm.slurm_programs import node_name
from ..record import secret, strict_json
from ..record.appender import Appender
from ..record.rundir import RecordFolder, Run
from ..record.strict_json import JsonObject
from ..store import worker_folder
from ..system import oom, process, token_processes
from ..system.client_program import start_guard
from ..training.command_watch import LEFTOVER_GRACE_S, TURN_S
from ..training.container_words import PYTHON, words_of
from ..training.members import KILL, STACKS, STOP
from ..training.variables import Rendezvous, by_us, interpreter_of, native_command, training_variables

BEAT_S = 1.0
"""The least time between two recorded beats of a node's ranks."""
NOT_FOUND = 127
_MAX_ORDERS = 4096


def main(arguments: List[str]) -> int:
    """Run a node's part of an attempt. Return its exit status, 0 if it was ordered to end."""
    path, number, first, grace_s = arguments
    run = Run(os.path.abspath(path))
    process.become_subreaper()
    terminations: List[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: terminations.append(number))
    for ignored in (signal.SIGINT, signal.SIGUSR1):  # meant for the run's agent
        signal.signal(ignored, signal.SIG_IGN)
    os.environ["SLURM_SUBMIT_DIR"] = str(run.code)
    worker_folder.unpack(sys.argv[0])
    folder = run.folder(int(number))
    # Steps made after this process's death are not recorded.
    with start_guard(folder.path, token_processes.OF_ATTEMPT, 0.0) as guard:
        return _Member(run, folder, first, float(grace_s), terminations, guard.pid).run()


class _Member:
    """One node's part of an attempt."""

    def __init__(
        self, run: Run, folder: RecordFolder, first: str, grace_s: float, terminations: List[int], guard: int
    ) -> None:
        self._run_of = run
        self._folder = folder
        self._first = first
        self._grace_s = grace_s
        self._terminations = terminations
        self._guard = guard
        self._plan = run.read_plan()
        self._record = folder.read_attempt()
        self._secrets = secret.read(run)
        self._node = folder.of_node(node_name())
        os.makedirs(self._node.path, mode=0o755, exist_ok=True)
        self._notes = _NodeRecord(self._node, secret.Redactor(self._secrets.values()))
        self._fence = Fence(run, folder)
        self._orders: Set[str] = set()
        self._is_asked = False
        self._is_killed = False

    def run(self) -> int:
        """Start the command and attend to it until all its descendants have ended. Return the exit status."""
        kills_before = oom.kills()
        with listening(self._run_of) as (listener, socket_path):
            start = self._start(socket_path)
            try:
                command = Command(start)
            except OSError as error:
                self._notes.take_output(("%s: %s\n" % (start.words[0], error.strerror)).encode())
                self._notes.close()
                return NOT_FOUND
            self._report({"command": start.words, "pid": command.pid})
            self._node.write_state("running")
            status, remaining = self._attend(command, listener)
        code, number = process.exit_of(status)
        kills = oom.kills()
        self._notes.close()
        self._node.write_state(
            "failed" if code or number is not None else "succeeded",
            "ordered" if self._is_asked else None,
            exit=code,
            signal=number,
            oom_kills=None if kills is None or kills_before is None else kills - kills_before,
            evidence={"remaining": remaining} if remaining else {},
        )
        if self._is_asked:  # Slurm would end the members whose ranks still save
            return 0
        return 128 + number if number is not None else code or 0

    def _start(self, socket_path: str) -> CommandStart:
        """Return the start of the command on this node."""
        run, plan, record = self._run_of, self._plan, self._record
        runtime = record.get("runtime") or {}
        ranks = [int(node["ranks"]) for node in plan["nodes"]]
        own = int(os.environ.get("SLURM_NODEID") or 0)
        rendezvous = Rendezvous(
            nodes=len(ranks),
            node=own,
            ranks=ranks[own],
            host=self._first,
            port=record["port"],
            name="%s-%d" % (run.id, self._folder.number),
        )
        command = [str(word) for word in plan["command"]]
        variables = training_variables(
            run,
            runtime,
            self._secrets,
            port=rendezvous.port,
            ranks=rendezvous.ranks,
            grace_s=self._grace_s,
            attempt=self._folder.path,
            socket=socket_path,
            stacks=self._node.stacks,
            hook=hook_parts(plan, record),
            rendezvous=rendezvous,
        )
        before = words_of(run, plan, socket_path)
        python = PYTHON if before else interpreter_of(runtime)
        words = [*before, *native_command(command, python, by_us(plan, sum(ranks)))]
        # torchrun starts even a single rank of this node, because the attempt has several in total.
        return CommandStart(
            words,
            run.code,
            variables,
            sum(ranks),
            may_dump=not self._secrets,
            is_in_image=bool(before),
            stacks=self._node.stacks,
        )

    def _attend(self, command: Command, listener: socket.socket) -> tuple[int, List[process.ProcessProof]]:
        """Attend to the command. Return its wait status, and the leftover processes that could not be ended."""
        notes = self._notes
        receiver = Receiver(notes.take_lines, notes.take_output, notes.finish_output, notes.flush)
        orders = os.fdopen(sys.stdin.fileno(), "rb", 0, closefd=False)
        with selectors.DefaultSelector() as selector:
            streams = Streams(selector, listener, command.output, receiver)
            os.set_blocking(orders.fileno(), False)

            def take_orders() -> None:
                piece = orders.read(_MAX_ORDERS)
                if piece == b"":
                    streams.forget(orders)
                    self._orders.add(KILL)
                self._orders.update((piece or b"").decode("ascii", "replace").split())

            streams.listen(orders, take_orders)
            with streams.woken_by_signals():
                while (status := command.reap()) is None:
                    streams.turn(TURN_S)
                    self._control(command)
            grace_s = 0.0 if self._is_killed else LEFTOVER_GRACE_S
            leftovers = end_leftovers(grace_s, lambda: streams.turn(0.02), [self._guard])
            streams.drain()
        if leftovers.proofs or leftovers.remaining:
            self._report({"ended": leftovers.proofs, "remaining": leftovers.remaining})
        return status, leftovers.remaining

    def _control(self, command: Command) -> None:
        """Follow the orders.

        If stacks that an earlier order requested are complete by now, copy them to the output.
        """
        stacks = command.take_stacks()
        if stacks:
            self._notes.take_output(stacks)
        if STACKS in self._orders:
            self._orders.remove(STACKS)
            self._report({"hang": {"processes": command.ask_for_stacks([self._guard])}})
        if not self._is_asked and (STOP in self._orders or self._terminations):
            self._is_asked = True
            self._signal(command, signal.SIGTERM)
        if not self._is_killed and (KILL in self._orders or self._fence.is_crossed()):
            self._is_asked = self._is_killed = True
            self._signal(command, signal.SIGKILL)

    def _signal(self, command: Command, number: int) -> None:
        proofs = command.send(number)
        if proofs:
            self._report({"signalled": proofs})

    def _report(self, values: JsonObject) -> None:
        """Report an event on this node."""
        self._notes.record({"node": node_name(), **values})


class _NodeRecord:
    """The reports of a node's workers and the output of its command, in the node's folder, without secrets."""

    def __init__(self, node: RecordFolder, redactor: secret.Redactor) -> None:
        self._redactor = redactor
        self._redaction = secret.Redaction(redactor)
        self._reports = Appender(node.reports)
        self._output = Appender(node.output)
        self._next_beat_s = 0.0

    def take_lines(self, lines: List[bytes]) -> None:
        """Record lines of workers."""
        kept = [self._line_of(read_report(line)) for line in lines]
        self._append([line for line in kept if line])

    def _line_of(self, report: Report) -> bytes:
        """Return the line to record; empty for a beat soon after another one."""
        if report.event is None:
            return self._redactor.redact_bytes(report.line)
        if report.event["kind"] == "beat":
            now_s = time.monotonic()
            if now_s < self._next_beat_s:
                return b""
            self._next_beat_s = now_s + BEAT_S
        if self._redactor.is_in_json(report.text):
            return strict_json.encode(self._redactor.redact(report.event)).encode()
        return report.line

    def record(self, values: JsonObject) -> None:
        """Record an event on this node."""
        event = {"kind": "evidence", "rank": 0, "time": time.time(), "source": NODE}
        event["values"] = self._redactor.redact(values)
        self._append([strict_json.encode(event).encode()])

    def _append(self, lines: List[bytes]) -> None:
        if lines:
            self._reports.append(b"\n".join(lines) + b"\n")

    def take_output(self, piece: bytes) -> None:
        """Record output."""
        self._output.append(self._redaction.feed(piece))

    def finish_output(self) -> None:
        """Record the output that was held back."""
        self._output.append(self._redaction.finish())

    def flush(self) -> None:
        """Write the data that waits for room on the disk."""
        for file in (self._reports, self._output):
            file.flush()

    def close(self) -> None:
        """Write all of it to the shared disk: the agent reads it on another machine."""
        self.flush()
        for file in (self._reports, self._output):
            with contextlib.suppress(OSError):  # a full disk, which the appender has handled
                file.sync()
