"""End processes that stay although their script has ended, for example because of a thread that never returns.

A Python whose main thread has ended handles one of the agent's signals (startup/sitecustomize.py): it stops
waiting for its threads and children, and exits with its own status. A process that does not exit within a
grace period is killed.
"""

from __future__ import annotations

import signal
import time
from typing import Callable, Collection, Dict, List, Optional, Set

from ..system import process
from ..system.process_use import COUNTED
from .stacks import STACKS_SIGNAL, Stacks

LEAVE = 45
"""The signal that a Python handles once its main thread has ended; LEAVE_FAILED if it ended by an exception."""
LEAVE_FAILED = 46
AGAIN_S = 1.5  # one signal interrupts one of the functions that run at exit
GRACE_S = 6.0
_SERVANTS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Python's own helpers, which run until the process that they serve has ended."""
_RANK_STARTERS = ("launcher_worker.start_ranks", "torchrun", "torch.distributed", "accelerate", "deepspeed")
WORDS = "its script had %s, but its process stayed: it was ended after %.0f s without output, CPU time and bytes of %s"
ENDED, REPORTED = "ended", "reported its end (worker.done)"


class Lingering:
    """A group of processes, from the request to exit until they have ended."""

    def __init__(
        self, processes: List[process.Process], silent_s: float, leaves_by: Callable[[int], Optional[int]]
    ) -> None:
        """Store the processes. The first signal is sent by `turn`.

        `leaves_by` returns the signal that makes a process exit, None if it handles none.
        """
        self._processes = processes
        self._leaves_by = leaves_by
        self._ask_s = 0.0
        can_leave = any(leaves_by(one.pid) for one in processes)
        self.words = WORDS % (ENDED if can_leave else REPORTED, silent_s, COUNTED)
        self._kill_s = time.monotonic() + (GRACE_S if can_leave else 0.0)
        self._killed: Dict[int, Optional[int]] = {}

    @property
    def is_over(self) -> bool:
        """Whether all have ended, or have survived a kill."""
        return time.monotonic() > self._kill_s + GRACE_S or not any(map(_is_there, self._processes))

    def turn(self) -> List[process.ProcessProof]:
        """Signal the remaining processes again if it is time, or kill them.

        Return the proofs of the signals sent.
        """
        now_s = time.monotonic()
        if now_s < self._ask_s:
            return []
        self._ask_s = now_s + AGAIN_S
        proofs = []
        for one in self._processes:
            leave = self._leaves_by(one.pid)
            number = signal.SIGKILL if now_s >= self._kill_s else leave
            if number is None or one.pid in self._killed or not process.send(one, number):
                continue
            if number == signal.SIGKILL:
                self._killed[one.pid] = leave
            proofs.append(one.proof("lingers", number))
        return proofs

    def has(self, pid: int) -> bool:
        """Whether a process belongs to the group."""
        return pid in [one.pid for one in self._processes]

    def was_killed(self, pid: int) -> bool:
        """Whether a process was killed, so that its own exit status is unknown."""
        return pid in self._killed

    def has_failed(self, pid: int) -> bool:
        """Whether the script of a killed process had ended by an exception."""
        return self._killed.get(pid) == LEAVE_FAILED


def _is_there(one: process.Process) -> bool:
    now = process.find(one.pid)
    return now is not None and now.start == one.start and now.letter != "Z"


def leaves_by(pid: int, stacks: Stacks) -> Optional[int]:
    """Return the signal that makes a Python with an ended main thread exit; None for other processes."""
    return next((number for number in (LEAVE, LEAVE_FAILED) if stacks.is_answered_by(pid, number)), None)


def lingering(spared: Collection[int], stacks: Stacks, *, spares_parents: bool) -> List[process.Process]:
    """Return the processes below this one, without the `spared` pids, whose main thread has ended.

    The list is empty if the main thread of any other Python still runs, such as another rank's: the command
    waits for that Python. This ignores the children of ended processes, and their parents if these start ranks;
    with `spares_parents` it ignores all parents.
    """
    members = {one.pid: one for one in process.own_descendants() if one.pid not in spared}
    ended = {one.pid: one for one in members.values() if leaves_by(one.pid, stacks)}
    parents = {pid for one in ended.values() for pid in _line_of(one, members)} - ended.keys()
    if not spares_parents:
        parents = {pid for pid in parents if _is_named(pid, _RANK_STARTERS)}
    others = [
        one
        for one in members.values()
        if one.pid not in parents
        and not ended.keys() & _line_of(one, members)
        and stacks.is_answered_by(one.pid, STACKS_SIGNAL)
        and not _is_named(one.pid, _SERVANTS)
    ]
    return [] if others else list(ended.values())


def _is_named(pid: int, names: Collection[str]) -> bool:
    words = " ".join(process.words_of(pid))
    return any(name in words for name in names)


def _line_of(one: process.Process, members: Dict[int, process.Process]) -> Set[int]:
    """Return the pids of a process and of its ancestors among `members`."""
    line: Set[int] = set()
    while one.pid not in line:
        line.add(one.pid)
        one = members.get(one.parent, one)
    return line
