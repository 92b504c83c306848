"""Liveness: what becomes of a run that none of our agents is writing, by its kind of runtime.

While the agent of a run holds the lock of its folder, the run is alive and nobody asks here. When the lock is free, the
answer depends on what keeps the run: a keeper process, a container engine, a scheduler. Each kind of runtime has a module
in a folder of its name, whose `PROBE` is an instance of a subclass of `LivenessProbe`. It is found by that name, so a new
kind is one new folder. For example `slurm/slurm_liveness.py`:

    class SlurmLiveness(LivenessProbe):
        shows_processes = False  # they are on another node

        def judge(self, runs):
            jobs = squeue(...)  # one question for all the runs
            return {run.id: RunLiveness(COMING_BACK if run.id in jobs else GONE) for run in runs}

    PROBE = SlurmLiveness()
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..record.rundir import Run
from ..record.strict_json import JsonObject
from ..system import process

ALIVE = "alive"
"""What the run was started in exists and works, although no agent has taken over yet."""
COMING_BACK = "coming back"
"""It will be started again without our help."""
GONE = "gone"
"""Nothing will start it again: a client may end the run, or restart it."""
SILENT = "silent"
"""What keeps the run did not answer. The run is in doubt: it must not be ended or started as if it were gone."""

NATIVE = "native"
"""The kind of a run whose record names none."""
_KIND = re.compile(r"[a-z][a-z0-9_]*")


class RunLiveness(NamedTuple):
    """What becomes of one run.

    `evidence` is recorded and shown beside the run's state, None if there is nothing to add. `words` says in one clause
    what is left, e.g. "its container is running". `state` is shown instead of the recorded one; for a run that is gone with
    its `reason`, instead of `interrupted`.
    """

    fate: str
    evidence: Optional[JsonObject] = None
    words: str = ""
    state: str = ""
    reason: Optional[str] = None


class Stray(NamedTuple):
    """A thing that was started for a run and that no run needs: what it is, its name, its run, and why it is not needed."""

    kind: str
    name: str
    run: str
    why: str
    end: Callable[[], bool]
    """Ends it; returns whether that was done."""


class StartError(Exception):
    """Raised for a run that could not be started, nothing of which is there. `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        """Store the code with the message."""
        super().__init__(message)
        self.code = code


class EndError(Exception):
    """Raised for a run that is not ended; the message has the words of what keeps it."""


class LivenessProbe(ABC):
    """Answer for the runs of one kind of runtime, start and end them, and say how they differ from those of other kinds.

    The defaults describe processes of this host that the client starts and ends.
    """

    is_started_by_client: bool = True
    """Whether the client starts the run, and starts it again to resume it. Otherwise `serve` does, by `start`."""
    shows_processes: bool = True
    """Whether `serve` sees the run's processes: it may wake the agent by a signal, and end leftovers by their token."""
    sees_host: bool = True
    """Whether the run's agent sees the host's processes and the other runs, so that it may judge who holds a card."""
    sees_lock: bool = True
    """Whether the lock of a live run's folder is seen to be held. Otherwise a free lock shows nothing."""
    writes_afar: bool = False
    """Whether the agent writes from another machine, so that a shared disk may show what it wrote late."""
    shutdown_reason: str = "host-shutdown"
    """Why an agent leaves, and its run goes on later, that got SIGTERM without a wish."""
    is_in_image: bool = False
    """Whether the agent runs inside an image: on the image's interpreter, with a GPU that the container can lose."""

    @abstractmethod
    def judge(self, runs: Sequence[Run]) -> Dict[str, RunLiveness]:
        """Return the verdict on each of these runs by id; many runs cost as few questions as possible."""

    def place_id(self) -> str:
        """Return the id of the place that keeps runs of this kind, as seen from here; empty if that cannot be told."""
        return process.host_id()

    def is_here(self, run: Run) -> bool:
        """Whether a run is kept by the place that is seen from here, so that it may be judged, started and ended from here."""
        return run.place_id() == self.place_id()

    def start(self, run: Run, after: int) -> None:
        """Start a run whose last folder is `after`; return when its agent has the next one, or when it is sure to come.

        Raises StartError.
        """
        raise NotImplementedError("the client starts run %s, not folder %d's keeper" % (run.id, after))

    def job_id(self, run: Run) -> Optional[str]:
        """Return the id of a run's job by a scheduler, as our own record has it; None for other kinds, and while it is not known."""
        del run
        return None

    def wake(self, run: Run) -> None:  # noqa: B027 # the agent of most kinds cannot be signalled from here
        """Have the agent of a run look at once at the wish that was written; one that cannot be woken looks by itself.

        Raises EndError if the run has no agent yet and cannot be ended.
        """

    def entrance(self, run: Run) -> List[str]:
        """Return the words of a program that is an agent where the run's processes are; none if that is here.

        More words, the number of a port, have it carry a connection there instead.

        Raises CommandError if nothing can be started there.
        """
        del run
        return []

    def end(self, run: Run) -> None:  # noqa: B027 # the client ends most kinds
        """End by force what runs of a run. Raises EndError if what keeps it does not."""

    def end_without_wish(self, run: Run, *, by_force: bool) -> None:
        """End a run whose wish the disk refuses; without `by_force` it saves first."""
        del by_force
        self.end(run)

    def forget(self, run: Run) -> None:  # noqa: B027 # most kinds cache nothing
        """Drop cached answers about a run, before acting on a new one."""

    def is_removed(self, run: Run) -> bool:
        """Whether nothing of a run is left in what keeps it, so that the run's folder may be removed."""
        return self.judge([run])[run.id].fate == GONE

    def is_paused(self, run: Run) -> bool:
        """Whether somebody has paused what keeps a run, processes and all."""
        del run
        return False

    def hopeless(self, run: Run) -> Optional[Tuple[str, str, JsonObject]]:
        """Return how a run that is gone has ended if it must not start again: state, reason and evidence; None if it may."""
        del run
        return None

    def standstill(self, run: Run) -> str:  # most kinds cannot tell
        """Say in one clause why the agent of a run does not move; empty if that is not known."""
        return ""

    def remaining(self, run: Run) -> str:
        """Say in one clause what still runs of a run that has ended, where its processes are not seen; empty if nothing does."""
        del run
        return ""

    def strays(self, root: str) -> List[Stray]:
        """Return what keeps runs below a root although no run there needs it."""
        del root
        return []

    def left(self, run: Run) -> str:
        """Say in one clause what is left of a run that was not ended completely; empty if nothing is."""
        verdict = self.judge([run])[run.id]
        return "" if verdict.fate == GONE else verdict.words or "it is %s" % verdict.fate


class _Unknown(LivenessProbe):
    """A kind that this agent has no module for, as in a record that a newer agent made."""

    shows_processes = False
    sees_host = False

    def __init__(self, kind: str) -> None:
        self._words = "%r is not known to this agent" % kind

    def judge(self, runs: Sequence[Run]) -> Dict[str, RunLiveness]:
        verdict = RunLiveness(SILENT, {"runtime": self._words}, "its runtime %s" % self._words)
        return {run.id: verdict for run in runs}


def probe_of(kind: str) -> LivenessProbe:
    """Return the LivenessProbe of a kind of runtime. An unknown kind gets one that answers `silent`."""
    return _find(kind) or _Unknown(kind)


def is_known(kind: str) -> bool:
    """Whether this agent has a module for a kind of runtime."""
    return _find(kind) is not None


def keeping_strays() -> Sequence[LivenessProbe]:
    """Return the kinds of runtime that may keep something which only they can find."""
    from .slurm.slurm_programs import cluster_name

    return [probe_of("slurm")] if cluster_name() else []


def _find(kind: str) -> Optional[LivenessProbe]:
    if not _KIND.fullmatch(kind):
        return None
    package = "%s.%s" % (__package__, kind)
    name = "%s.%s_liveness" % (package, kind)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (package, name):
            raise
        return None
    found = getattr(module, "PROBE", None)
    return found if isinstance(found, LivenessProbe) else None
