"""The agent's half of a run on several nodes: one job step starts a `member` on each node.

Each member starts the command on its node. The members write their reports and output into the folders of
their nodes, on the shared disk. The agent reads them there, and records them like its own workers' reports
and its own command's output. Orders go through the step's standard input, which Slurm passes on to each
member. The input closes when the agent ends; each member then ends its processes. If a member cannot do so, for
example because it is suspended, the job's script finds its step by name and ends it.

Signals do not work for this: `srun` ends its step at a TERM, and passes other signals to all processes below
a member.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from typing import Collection, Dict, List, NamedTuple, Optional

from ..attempt.attempt_writer import TAIL_BYTES
from ..attempt.progress import NODE
from ..attempt.training_command import Command, CommandStart, End, FromNodes, WaitPoint
from ..diagnosis.failures import BY_NAME
from ..diagnosis.remedy import AttemptFailure
from ..liveness.slurm.slurm_jobs import MEMBERS
from ..liveness.slurm.slurm_programs import node_name
from ..record import strict_json
from ..record.rundir import RecordFolder, Run
from ..record.safe_open import RunPath, UnreadableError, open_regular, read_tail
from ..record.strict_json import JsonObject
from ..system import process, process_use
from ..system.process import ProcessProof

STOP, KILL, STACKS = "stop", "kill", "stacks"
"""The orders, each a line."""
STEP = (
    "srun",
    "--job-name=%s" % MEMBERS,
    "--export=ALL",
    "--overlap",
    "--ntasks-per-node=1",
    "--cpu-bind=none",
    "--input=all",
    "--kill-on-bad-exit=1",
)
LOST = "host-lost"
KILL_S = 10.0
"""The delay between the order KILL and the kill of `srun`, which would wait for nodes that do not answer."""
_OF_JOB = ("SLURM_JOB_", "SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_SUBMIT_")
_MAX_BYTES = 1 << 20
_MAX_WORDS = 64 * 1024
_LOST = re.compile(r"^.*(?:Node failure on \S+|DUE TO NODE FAILURE).*$", re.MULTILINE)
_TASK = re.compile(
    r"^srun: error: (?P<node>\S+): tasks? \S+: (?:Exited with exit code (?P<code>[0-9]+)|(?P<signal>[\w ]+))",
    re.MULTILINE,
)
_OUT_OF_MEMORY = re.compile(r"Out Of Memory|oom[-_]kill", re.IGNORECASE)


def start_of(run: Run, folder: RecordFolder, nodes: int, grace_s: float) -> CommandStart:
    """Return the command that starts a member of an attempt on each node of this job.

    Slurm's variables of a job's script are removed, because some are options of `srun`.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SRUN_")) or name.startswith(_OF_JOB)
    }
    if (cpus := os.environ.get("SLURM_CPUS_PER_TASK")) is not None:
        variables["SRUN_CPUS_PER_TASK"] = cpus  # since 22.05 srun ignores the job's value
    first = node_name()
    member = ["member", run.path, str(folder.number), first, "%.1f" % grace_s]
    words = [
        *STEP,
        "--nodes=%d" % nodes,
        "--ntasks=%d" % nodes,
        *(sys.executable, "-I", sys.argv[0]),
        *member,
    ]
    return CommandStart(words, "/", variables, 1)


class Members(Command):
    """The step that has a member on each node. The agent uses it like the command itself."""

    def __init__(self, start: CommandStart, folder: RecordFolder) -> None:
        """Start the step. Raises OSError if `srun` is missing."""
        super().__init__(start, subprocess.PIPE, subprocess.PIPE)
        assert self._child.stdin is not None  # noqa: S101 - asked for with PIPE
        assert self._child.stderr is not None  # noqa: S101 - asked for with PIPE
        self._orders = self._child.stdin.fileno()
        self._slurm = self._child.stderr.fileno()
        os.set_blocking(self._orders, False)
        os.set_blocking(self._slurm, False)
        self._folder = folder
        self._readers: Dict[str, _NodeReader] = {}
        self._words = ""
        self._has_ended = False
        self._ended_at_s = float("inf")

    def reap(self) -> Optional[int]:
        """Collect ended children; return the wait status of the step once it has ended on all nodes."""
        status = super().reap()
        self._has_ended = status is not None
        if not self._has_ended and time.monotonic() > self._ended_at_s:
            self._child.kill()
        return status

    def send(self, number: int) -> List[ProcessProof]:
        """Order all members to signal their commands; they report which processes they signalled."""
        if number == signal.SIGKILL:
            self._ended_at_s = time.monotonic() + KILL_S
        self._order(KILL if number == signal.SIGKILL else STOP)
        return []

    def ask_for_stacks(self, spared: Collection[int]) -> List[WaitPoint]:
        """Order all members to collect stacks; they report the wait point of each process."""
        self._order(STACKS)
        return []

    def wait_points(self, spared: Collection[int], *, asks_sleeping: bool) -> List[WaitPoint]:
        """Return nothing: the processes are on other machines."""
        return []

    def use(self, spared: Collection[int]) -> Optional[process_use.Use]:
        """Return None: this machine cannot measure the processes on other machines."""
        return None

    def lingering(self, spared: Collection[int], *, spares_parents: bool) -> List[process.Process]:
        """Return nothing: the processes are on other machines."""
        return []

    def _order(self, word: str) -> None:
        with contextlib.suppress(OSError):  # the step has ended
            os.write(self._orders, (word + "\n").encode())

    def from_nodes(self) -> FromNodes:
        """Return the members' reports and output since the last call, and Slurm's own messages."""
        lines = [_evidence({"slurm": line}) for line in self._read_words()]
        output = []
        for node in self._folder.nodes():
            reader = self._readers.setdefault(node.path, _NodeReader.of(node))
            lines += reader.reports.read(b"\n", self._has_ended).split(b"\n")
            output.append(reader.output.read(b"\r\n", self._has_ended))
        return FromNodes([line for line in lines if line], b"".join(output))

    def _read_words(self) -> List[str]:
        """Return the lines that Slurm has printed since the last call."""
        try:
            said = os.read(self._slurm, _MAX_WORDS).decode("utf-8", "replace")
        except BlockingIOError:
            return []
        self._words = (self._words + said)[-_MAX_WORDS:]
        return said.splitlines()

    def failure(self) -> Optional[AttemptFailure]:
        """Return the failure `host-lost` once Slurm reports a node failure.

        It takes precedence over the other nodes' errors.
        """
        found = _LOST.search(self._words)
        if found is None:
            return None
        row = BY_NAME[LOST]
        return AttemptFailure(LOST, found[0].strip(), row.why, row.mend)

    def ended(self, status: int) -> End:
        """Return how the command ended on the node that failed first; Slurm then ended the other nodes."""
        step = End(*process.exit_of(status))
        if step.code == 0:
            return step
        first = _TASK.search(self._words)
        if first is None:  # the step did not start
            return step._replace(log=self._words.encode()) if not self._readers else step
        node = self._folder.of_node(first["node"])
        log, state = read_tail(node.output, TAIL_BYTES), node.read_state()
        if first["code"] is not None:
            code, number = state.get("exit"), state.get("signal")
            if code is None and number is None:  # the member could not record the end
                code = int(first["code"])
            return End(code, number, log, state.get("oom_kills"))
        number = signal.SIGTERM if first["signal"] == "Terminated" else signal.SIGKILL
        return End(None, number, log, int(bool(_OUT_OF_MEMORY.search(self._words))))


class _Tail:
    """A file that grows on another machine, read from the last offset.

    It is opened again for each read, because a network file system then asks its server.
    """

    def __init__(self, path: RunPath) -> None:
        self._path = path
        self._offset = 0

    def read(self, ends: bytes, is_last: bool) -> bytes:
        """Return the new bytes up to the last of the given line ends; all of them if `is_last`."""
        try:
            with open(open_regular(self._path, os.O_RDONLY), "rb") as file:
                file.seek(self._offset)
                data = file.read(-1 if is_last else _MAX_BYTES)
        except (FileNotFoundError, UnreadableError):
            return b""
        whole = max(data.rfind(bytes([byte])) for byte in ends) + 1
        if not is_last and (whole or len(data) < _MAX_BYTES):
            data = data[:whole]
        self._offset += len(data)
        return data


class _NodeReader(NamedTuple):
    """The readers of one node's files."""

    reports: _Tail
    output: _Tail

    @classmethod
    def of(cls, node: RecordFolder) -> _NodeReader:
        """Return readers of the files in a node's folder, at their beginning."""
        return cls(_Tail(node.reports), _Tail(node.output))


def _evidence(values: JsonObject) -> bytes:
    event = {"kind": "evidence", "rank": 0, "time": time.time(), "source": NODE, "values": values}
    return strict_json.encode(event).encode()
