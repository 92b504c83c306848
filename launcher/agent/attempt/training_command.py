"""Start and signal the command of an attempt, and end the processes that it leaves."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
from typing import IO, Callable, Collection, List, Mapping, NamedTuple, Optional, TypedDict, Union

from ..diagnosis.remedy import AttemptFailure
from ..system import process, process_use, token_processes
from ..system.client_program import reap
from ..system.core_limit import LoginLimit
from ..system.login_umask import login_umask
from .lingering_processes import leaves_by, lingering
from .stacks import STACKS_SIGNAL, Stacks


class End(NamedTuple):
    """How a command ended: by an exit status or by a signal; the other is None.

    If one node of several caused the end, `log` is the end of its output, and `oom_kills` is the number of
    processes that its kernel killed for lack of memory.
    """

    code: Optional[int]
    signal: Optional[int]
    log: Optional[bytes] = None
    oom_kills: Optional[int] = None


class FromNodes(NamedTuple):
    """Data from other nodes: lines of their workers, and output."""

    lines: List[bytes]
    output: bytes


class WaitPoint(TypedDict):
    """A recorded process of a silent command.

    It has the state letter, the kernel function in which the process waits, and whether its stacks were
    requested.
    """

    pid: int
    state: str
    waits: Optional[str]
    stacks: bool


class CommandStart(NamedTuple):
    """The inputs of a command's start: its program and arguments (`words`), folder, variables, and number of ranks.

    `may_dump`: a crash leaves a core dump if the login's limit allows it. `is_in_image`: the words begin with
    Apptainer's. `stacks` is the path of the file for the stacks of its processes, None if they run elsewhere.
    """

    words: List[str]
    folder: str
    variables: Mapping[str, Union[str, bytes]]
    ranks: int
    may_dump: bool = False
    is_in_image: bool = False
    stacks: Optional[str] = None


class Command:
    """A running command in a separate session."""

    def __init__(
        self, start: CommandStart, stdin: int = subprocess.DEVNULL, stderr: int = subprocess.STDOUT
    ) -> None:
        """Start it. Raises OSError if it cannot be started."""
        self._ranks = start.ranks
        self._is_in_image = start.is_in_image
        self._stacks = None if start.stacks is None else Stacks(start.stacks)
        with login_umask(), LoginLimit() if start.may_dump else contextlib.nullcontext():
            self._child = subprocess.Popen(
                start.words,
                cwd=start.folder,
                env=start.variables,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def output(self) -> IO[bytes]:
        """Its standard output and standard error."""
        assert self._child.stdout is not None  # noqa: S101 - asked for with PIPE
        return self._child.stdout

    def reap(self) -> Optional[int]:
        """Collect ended children. Return the command's wait status once it has ended."""
        return reap(self._child)

    def send(self, number: int) -> List[process.ProcessProof]:
        """Send a signal to the command's first process, which may pass it on. Return the proofs of the signals sent.

        torchrun kills its ranks half a minute after it has passed SIGTERM on, even if they are still saving.
        So SIGTERM goes to the ranks that handle it, and torchrun ends when they have ended.
        """
        leader = process.find(self.pid)
        targets = [leader] if leader is not None else []
        if number == signal.SIGTERM and self._ranks > 1:
            ranks = _children(self._inside) if self._is_in_image else _children(self.pid)
            targets = [rank for rank in ranks if process.catches(rank.pid, number)] or targets
        return [target.proof("child", number) for target in targets if process.send(target, number)]

    @property
    def _inside(self) -> Optional[int]:
        """The pid of the process that Apptainer has started in the image; None if it does not run.

        Apptainer's other children, such as squashfuse_ll, provide the image: they have no variables of the
        run, and a SIGTERM to them takes the image away.
        """
        children = _children(self.pid)
        entries = token_processes.read_entries(
            children, [child.pid for child in children if child.letter == "D"]
        )
        return next((entry.pid for entry in entries if entry.token is not None), None)

    # defaults that a command on several nodes overrides

    def from_nodes(self) -> FromNodes:
        """Return the data from other nodes since the last call."""
        return FromNodes([], b"")

    def failure(self) -> Optional[AttemptFailure]:
        """Return why the command cannot continue, if its starter found a reason; None otherwise."""
        return None

    def ended(self, status: int) -> End:
        """Return how the command ended, by its wait status."""
        return End(*process.exit_of(status))

    def ask_for_stacks(self, spared: Collection[int]) -> List[WaitPoint]:
        """Ask all processes of the command but `spared` for their stacks. Return each process's wait point.

        Only for processes that are about to be ended: a running Python may crash while it writes its stacks.
        """
        return self._wait_points(spared, lambda _pid: True)

    def wait_points(self, spared: Collection[int], *, asks_sleeping: bool) -> List[WaitPoint]:
        """Return the wait point of each process but the `spared` pids.

        `asks_sleeping`: also ask the sleeping ones for their stacks.
        """
        return self._wait_points(spared, process_use.is_asleep if asks_sleeping else lambda _pid: False)

    def _wait_points(self, spared: Collection[int], may_ask: Callable[[int], bool]) -> List[WaitPoint]:
        """Return each process's wait point.

        Ask a process for its stacks if it handles the request and `may_ask` accepts it.
        """
        processes: List[WaitPoint] = []
        for member in _others(spared):
            waits = process.waits_for(member.pid)
            is_asked = (
                self._stacks is not None
                and self._stacks.is_answered_by(member.pid, STACKS_SIGNAL)
                and may_ask(member.pid)
                and process.send(member, STACKS_SIGNAL)
            )
            processes.append({"pid": member.pid, "state": member.letter, "waits": waits, "stacks": is_asked})
        return processes

    def take_stacks(self) -> bytes:
        """Return the stacks that were written since the last call."""
        return b"" if self._stacks is None else self._stacks.take()

    def ended_s(self, ended: List[process.Process]) -> float:
        """Return when the last of these main threads ended, by the monotonic clock; infinity if unknown."""
        ends_s = {} if self._stacks is None else self._stacks.ends_s
        return max((ends_s.get(one.pid, math.inf) for one in ended), default=math.inf)

    def use(self, spared: Collection[int]) -> Optional[process_use.Use]:
        """Return the resource use of all processes of the command but `spared`; None if it is not visible.

        It is not visible either if the command uses a background server, such as tmux.
        """
        if process.servers_below(os.getpid()):  # work in the server is not among the descendants
            return None
        return process_use.use_of(_others(spared))

    def lingering(self, spared: Collection[int], *, spares_parents: bool) -> List[process.Process]:
        """Return the processes but `spared` whose main thread has ended, unless another Python still works."""
        return [] if self._stacks is None else lingering(spared, self._stacks, spares_parents=spares_parents)

    def leaves_by(self, pid: int) -> Optional[int]:
        """Return the signal that makes a process with an ended main thread exit; None for other processes."""
        return None if self._stacks is None else leaves_by(pid, self._stacks)


def _children(pid: Optional[int]) -> List[process.Process]:
    return [] if pid is None else [child for child in process.descendants(pid) if child.parent == pid]


class BackgroundServer(TypedDict):
    """The record of a background server that a command started, such as tmux."""

    pid: int
    start: str
    program: Optional[str]


class CommandLeftovers(NamedTuple):
    """The signals sent to processes that a command left behind, and the processes that could not be ended.

    `servers` are background servers that the command started, such as tmux: they and their descendants keep
    running.
    """

    proofs: List[process.ProcessProof]
    remaining: List[process.ProcessProof]
    servers: List[BackgroundServer]


def _others(spared: Collection[int]) -> List[process.Process]:
    return [member for member in process.own_descendants() if member.pid not in spared]


def end_leftovers(grace_s: float, wait: Callable[[], object], spared: Collection[int]) -> CommandLeftovers:
    """End all processes below this one but the `spared` pids, calling `wait` between looks."""
    ending = process.ProcessTermination(lambda: _others(spared), "descendant", grace_s)
    while not ending.step():
        wait()
    servers: List[BackgroundServer] = [
        {"pid": found.pid, "start": found.start, "program": process.server_of(found)}
        for found in process.servers_below(os.getpid())
    ]
    return CommandLeftovers(ending.proofs, ending.remaining, servers)
