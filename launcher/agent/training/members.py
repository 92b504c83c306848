"""The agent's half of a run on several nodes: one step of its job starts a `member` on each, which starts the command there.

What the members have to say lies in the folders of their nodes, on the disk that all share: the agent reads on there, and
records it as its own workers' reports and its own command's output. Orders go through the step's standard input, which
Slurm passes on to each member. It ends with this process, and a member then ends what it has started. One that cannot, e.g. because
it is stopped, is ended by its job's script, by the name of the step.

A signal would not do: `srun` ends its step at a TERM, and passes others on to all processes below a member.
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
from ..record import strict_json
from ..record.rundir import Folder, Run
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
"""So long after an order to end now, `srun` itself is ended: it waits for nodes that do not answer."""
_OF_JOB = ("SLURM_JOB_", "SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_SUBMIT_")
_CPUS = "SRUN_CPUS_PER_TASK"
_MOST_BYTES = 1 << 20
_MOST_WORDS = 64 * 1024
_LOST = re.compile(r"^.*(?:Node failure on \S+|DUE TO NODE FAILURE).*$", re.MULTILINE)
_TASK = re.compile(
    r"^srun: error: (?P<node>\S+): tasks? \S+: (?:Exited with exit code (?P<code>[0-9]+)|(?P<signal>[\w ]+))",
    re.MULTILINE,
)
_OUT_OF_MEMORY = re.compile(r"Out Of Memory|oom[-_]kill", re.IGNORECASE)


def start_of(run: Run, folder: Folder, nodes: int, grace_s: float) -> CommandStart:
    """Return what starts a member of an attempt on each node of this job, from within a step of one node.

    What Slurm says of that step to the agent does not hold for this one.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SRUN_")) or name.startswith(_OF_JOB) or name == _CPUS
    }
    first = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
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
    """The step that has a member on each node, for the agent as good as the command itself."""

    def __init__(self, start: CommandStart, folder: Folder) -> None:
        """Start it. Raises OSError if there is no `srun`."""
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
        """Have all members signal their commands; they report whom."""
        if number == signal.SIGKILL:
            self._ended_at_s = time.monotonic() + KILL_S
        self._order(KILL if number == signal.SIGKILL else STOP)
        return []

    def ask_for_stacks(self, spared: Collection[int]) -> List[WaitPoint]:
        """Have all members ask for stacks; they report what each process waits for."""
        del spared
        self._order(STACKS)
        return []

    def wait_points(self, spared: Collection[int], *, asks_sleeping: bool) -> List[WaitPoint]:
        """Return nothing: they are on other machines."""
        del spared, asks_sleeping
        return []

    def use(self, spared: Collection[int]) -> Optional[process_use.Use]:
        """Return None: what the processes on other machines use is not seen here."""
        del spared
        return None

    def lingering(self, spared: Collection[int], *, spares_parents: bool) -> List[process.Process]:
        """Return nothing: they are on other machines."""
        del spared, spares_parents
        return []

    def _order(self, word: str) -> None:
        with contextlib.suppress(OSError):  # it has ended
            os.write(self._orders, (word + "\n").encode())

    def from_nodes(self) -> FromNodes:
        """Return what members have reported and printed since the last call, and what Slurm has said."""
        lines = [_evidence({"slurm": line}) for line in self._read_words()]
        output = []
        for node in self._folder.nodes():
            reader = self._readers.setdefault(node.path, _NodeReader.of(node))
            lines += reader.reports.read(b"\n", self._has_ended).split(b"\n")
            output.append(reader.output.read(b"\r\n", self._has_ended))
        return FromNodes([line for line in lines if line], b"".join(output))

    def _read_words(self) -> List[str]:
        """Return the lines that Slurm has said since the last call."""
        try:
            said = os.read(self._slurm, _MOST_WORDS).decode("utf-8", "replace")
        except BlockingIOError:
            return []
        self._words = (self._words + said)[-_MOST_WORDS:]
        return said.splitlines()

    def failure(self) -> Optional[AttemptFailure]:
        """Return that a node was lost, once Slurm has said so: what the other nodes say of it counts less."""
        found = _LOST.search(self._words)
        if found is None:
            return None
        row = BY_NAME[LOST]
        return AttemptFailure(LOST, found[0].strip(), row.why, row.mend)

    def ended(self, status: int) -> End:
        """Return how the command ended on the node that ended first with an error: it has ended the others."""
        step = End(*process.exit_of(status))
        if step.code == 0:
            return step
        first = _TASK.search(self._words)
        if first is None:  # it did not start
            return step._replace(log=self._words.encode()) if not self._readers else step
        node = self._folder.of_node(first["node"])
        log, state = read_tail(node.output, TAIL_BYTES), node.read_state()
        if first["code"] is not None:
            code, number = state.get("exit"), state.get("signal")
            if code is None and number is None:  # it ended otherwise than the member can say
                code = int(first["code"])
            return End(code, number, log, state.get("oom_kills"))
        number = signal.SIGTERM if first["signal"] == "Terminated" else signal.SIGKILL
        return End(None, number, log, int(bool(_OUT_OF_MEMORY.search(self._words))))


class _Tail:
    """A file that grows on another machine, from the last byte that was read.

    It is opened each time, because a network file system then asks its server.
    """

    def __init__(self, path: RunPath) -> None:
        self._path = path
        self._offset = 0

    def read(self, ends: bytes, is_last: bool) -> bytes:
        """Return what was added up to the last of some bytes, the last time all of it."""
        try:
            with open(open_regular(self._path, os.O_RDONLY), "rb") as file:
                file.seek(self._offset)
                data = file.read(-1 if is_last else _MOST_BYTES)
        except (FileNotFoundError, UnreadableError):
            return b""
        whole = max(data.rfind(bytes([byte])) for byte in ends) + 1
        if not is_last and (whole or len(data) < _MOST_BYTES):
            data = data[:whole]
        self._offset += len(data)
        return data


class _NodeReader(NamedTuple):
    """What is read of a node."""

    reports: _Tail
    output: _Tail

    @classmethod
    def of(cls, node: Folder) -> _NodeReader:
        """Begin with a node's folder."""
        return cls(_Tail(node.reports), _Tail(node.output))


def _evidence(values: JsonObject) -> bytes:
    event = {"kind": "evidence", "rank": 0, "time": time.time(), "source": NODE, "values": values}
    return strict_json.encode(event).encode()
