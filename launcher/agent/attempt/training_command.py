"""The command of an attempt: how it is started, signalled, and cleaned up after."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
from typing import IO, Callable, Collection, List, Mapping, NamedTuple, Optional, TypedDict, Union

from ..diagnosis.remedy import AttemptFailure
from ..system import bearers, process, process_use
from ..system.attending import reap
from ..system.core_limit import LoginLimit
from ..system.login_umask import login_umask
from .lingering import leaves_by, lingering
from .stacks import STACKS_SIGNAL, Stacks


class End(NamedTuple):
    """How a command ended: by an exit status or a signal, the other is None.

    If that is because of one node of several, `log` is the end of what it printed there, and `oom_kills` is how many
    processes the kernel killed there for lack of memory.
    """

    code: Optional[int]
    signal: Optional[int]
    log: Optional[bytes] = None
    oom_kills: Optional[int] = None


class FromNodes(NamedTuple):
    """What came from other nodes: lines of workers there, and what was printed."""

    lines: List[bytes]
    output: bytes


class WaitPoint(TypedDict):
    """A process of a silent command, as it is recorded: its state letter, the kernel function it waits in, whether its stacks were asked for."""

    pid: int
    state: str
    waits: Optional[str]
    stacks: bool


class CommandStart(NamedTuple):
    """What a command is started with: its words, its folder, its variables, and the number of its ranks.

    `may_dump`: a crash leaves a core dump if the login's limit allows it. `is_in_image`: the words begin with Apptainer's.
    `stacks` is the path of the file for the stacks of its processes, None for a command whose processes are elsewhere.
    """

    words: List[str]
    folder: str
    variables: Mapping[str, Union[str, bytes]]
    ranks: int
    may_dump: bool = False
    is_in_image: bool = False
    stacks: Optional[str] = None


class Command:
    """A running command in a session of its own."""

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
        """Collect ended children; return the command's wait status once it has ended."""
        return reap(self._child)

    def send(self, number: int) -> List[process.ProcessProof]:
        """Send the command a signal, which it passes on as under a shell; return the proofs of what was signalled.

        torchrun kills its ranks half a minute after it has passed SIGTERM on, even if they are still saving. So SIGTERM
        goes to the ranks that handle it, and torchrun ends when they have ended.
        """
        leader = process.find(self.pid)
        targets = [leader] if leader is not None else []
        if number == signal.SIGTERM and self._ranks > 1:
            ranks = _children(self._inside) if self._is_in_image else _children(self.pid)
            targets = [rank for rank in ranks if process.catches(rank.pid, number)] or targets
        return [target.proof("child", number) for target in targets if process.send(target, number)]

    @property
    def _inside(self) -> Optional[int]:
        """The pid of what Apptainer has started in the image, None if it is not there.

        Its other children give the image, such as squashfuse_ll: they have no variables of the run, and a SIGTERM to them
        takes the image away.
        """
        children = _children(self.pid)
        entries = bearers.read_entries(children, [child.pid for child in children if child.letter == "D"])
        return next((entry.pid for entry in entries if entry.token is not None), None)

    # what a command that runs on several nodes answers for itself

    def from_nodes(self) -> FromNodes:
        """Return what has come from other nodes since the last call."""
        return FromNodes([], b"")

    def failure(self) -> Optional[AttemptFailure]:
        """Return why the command cannot go on, which only what started it knows; None for nothing."""
        return None

    def ended(self, status: int) -> End:
        """Return how the command ended, by its wait status."""
        return End(*process.exit_of(status))

    def ask_for_stacks(self, spared: Collection[int]) -> List[WaitPoint]:
        """Ask all processes of the command but the `spared` pids for their stacks; return what each of them waits for.

        A Python that runs may crash while it writes its stacks: this is for those that are to be ended.
        """
        return self._wait_points(spared, lambda _pid: True)

    def wait_points(self, spared: Collection[int], *, asks_sleeping: bool) -> List[WaitPoint]:
        """Return what each process but the `spared` pids waits for; `asks_sleeping`: ask for the stacks of those that sleep."""
        return self._wait_points(spared, process_use.is_asleep if asks_sleeping else lambda _pid: False)

    def _wait_points(self, spared: Collection[int], may_ask: Callable[[int], bool]) -> List[WaitPoint]:
        """Return what each process waits for; those are asked for their stacks that answer and may be asked."""
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
        """Return when the last of some main threads had ended, by the monotonic clock; infinity if that is not known."""
        ends_s = {} if self._stacks is None else self._stacks.ends_s
        return max((ends_s.get(one.pid, math.inf) for one in ended), default=math.inf)

    def use(self, spared: Collection[int]) -> Optional[process_use.Use]:
        """Return what all processes of the command but the `spared` pids have used; None where that cannot be seen.

        Nor can it where something was handed over to a server in the background, such as tmux.
        """
        if process.servers_below(os.getpid()):  # what works there is not among the others
            return None
        return process_use.use_of(_others(spared))

    def lingering(self, spared: Collection[int], *, spares_parents: bool) -> List[process.Process]:
        """Return the processes but the `spared` pids whose main thread has ended, if nothing else is waited for."""
        return [] if self._stacks is None else lingering(spared, self._stacks, spares_parents=spares_parents)

    def leaves_by(self, pid: int) -> Optional[int]:
        """Return the signal by which a process leaves whose main thread has ended; None of any other process."""
        return None if self._stacks is None else leaves_by(pid, self._stacks)


def _children(pid: Optional[int]) -> List[process.Process]:
    return [] if pid is None else [child for child in process.descendants(pid) if child.parent == pid]


class BackgroundServer(TypedDict):
    """A server in the background that a command started, as it is recorded, such as tmux."""

    pid: int
    start: str
    program: Optional[str]


class CommandLeftovers(NamedTuple):
    """The signals that were sent to processes that a command left behind, and the processes that could not be ended.

    `servers` are those in the background that the command started, such as tmux: they and all below them live on.
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
