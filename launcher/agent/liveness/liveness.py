"""Liveness: the verdict on a run whose agent holds no lock, by its kind of runtime.

While the agent of a run holds the lock of its folder, the run is alive and no probe is asked. When the lock
is free, the verdict depends on what started the run: a keeper process, a container engine or a scheduler.
Each kind of runtime has a module in a folder of the same name. Its `PROBE` is an instance of a subclass of
`LivenessProbe`. Modules are found by name, so a new kind needs only a new folder. For example
`slurm/slurm_liveness.py`:

    class SlurmLiveness(LivenessProbe):
        shows_processes = False  # they are on another node

        def judge(self, runs):
            jobs = squeue(...)  # one query for all the runs
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
"""The run's keeper, container or job exists and works, even if no agent has taken over yet."""
COMING_BACK = "coming back"
"""The runtime will start the run again without our help."""
GONE = "gone"
"""Nothing will start the run again: a client may end or restart it."""
SILENT = "silent"
"""The runtime did not answer. The run is in doubt: it must not be ended or started as if it were gone."""

NATIVE = "native"
"""The kind of a run whose record names no kind."""
_KIND = re.compile(r"[a-z][a-z0-9_]*")


class RunLiveness(NamedTuple):
    """The verdict on one run.

    `evidence` is recorded and shown beside the run's state; None if there is nothing to add. `words`
    is the status in one clause, e.g. "its container is running". `state` is shown instead of the recorded
    state. For a run that is gone, `state` and `reason` replace `interrupted`.
    """

    liveness: str
    evidence: Optional[JsonObject] = None
    words: str = ""
    state: str = ""
    reason: Optional[str] = None


class Orphan(NamedTuple):
    """A container or job that no run needs: its kind, name and run, and why it is not needed."""

    kind: str
    name: str
    run: str
    why: str
    end: Callable[[], bool]
    """End it; return whether that succeeded."""


class StartError(Exception):
    """Raised if a run was not started: no process or job of it is left.

    The `code` is for programs and the message for users.
    """

    def __init__(self, code: str, message: str) -> None:
        """Store the code with the message."""
        super().__init__(message)
        self.code = code


class EndError(Exception):
    """Raised if a run could not be ended; the message has the runtime's own words."""


class LivenessProbe(ABC):
    """Judge, start and end the runs of one kind of runtime, and describe how this kind differs from others.

    The defaults describe processes of this host that the client starts and ends.
    """

    is_started_by_client: bool = True
    """Whether the client starts the run and starts it again to resume it. Otherwise `serve` calls `start`."""
    shows_processes: bool = True
    """Whether `serve` sees the run's processes: it can signal the agent, and end leftovers by their token."""
    sees_host: bool = True
    """Whether the agent sees the host's processes and other runs, and so knows which process holds a card."""
    sees_lock: bool = True
    """Whether the lock of a live run is seen as held from this machine. If not, a free lock proves nothing."""
    writes_afar: bool = False
    """Whether the agent writes from another machine, so that a shared disk may show its writes late."""
    shutdown_reason: str = "host-shutdown"
    """The reason recorded by an agent that got SIGTERM without a stop request; its run continues later."""
    is_in_image: bool = False
    """Whether the agent runs in an image: on the image's interpreter, with a GPU that the container can lose."""

    @abstractmethod
    def judge(self, runs: Sequence[Run]) -> Dict[str, RunLiveness]:
        """Return the verdict on each of these runs by id. Many runs should cost few queries."""

    def place_id(self) -> str:
        """Return the id of the place that keeps runs of this kind, seen from here; empty if unknown."""
        return process.host_id()

    def is_here(self, run: Run) -> bool:
        """Whether this place keeps the run. Only then may the run be judged, started and ended from here."""
        return run.place_id() == self.place_id()

    def start(self, run: Run, after: int) -> None:
        """Start a run whose last folder is `after`.

        Return when its agent has the next folder, or is certain to get it.

        Raises StartError.
        """
        raise NotImplementedError("the client starts run %s, not folder %d's keeper" % (run.id, after))

    def job_id(self, run: Run) -> Optional[str]:
        """Return the id of a run's scheduler job from our record; None for other kinds, and if unknown."""
        return None

    def wake(self, run: Run) -> None:  # noqa: B027 # the agent of most kinds cannot be signalled from here
        """Make the run's agent read its wish file now. An agent that cannot be signalled polls the file.

        Raises EndError if the run has no agent yet and cannot be ended.
        """

    def entrance(self, run: Run) -> List[str]:
        """Return the command prefix that starts an agent beside the run's processes; empty if those are here.

        With a port number appended, that agent forwards a connection to the port instead.

        Raises CommandError if no process can be started beside the run's.
        """
        return []

    def end(self, run: Run) -> None:  # noqa: B027 # the client ends most kinds
        """Kill the processes of a run. Raises EndError if its runtime refuses."""

    def end_without_wish(self, run: Run, *, by_force: bool) -> None:
        """End a run when the disk refuses the wish file; without `by_force` the run saves first."""
        self.end(run)

    def forget(self, run: Run) -> None:  # noqa: B027 # most kinds cache nothing
        """Drop cached answers about a run, so that the next verdict is fresh."""

    def is_removed(self, run: Run) -> bool:
        """Whether the runtime has no container or job of a run any more, so that the run's folder may be removed."""
        return self.judge([run])[run.id].liveness == GONE

    def is_paused(self, run: Run) -> bool:
        """Whether the run's runtime was paused, with all its processes."""
        return False

    def hopeless(self, run: Run) -> Optional[Tuple[str, str, JsonObject]]:
        """Return state, reason and evidence of a gone run that must not start again; None if it may."""
        from . import restartable  # few runs are recovered, and loading it would delay every launch

        if restartable.may_begin_again(run):
            return None
        return "failed", restartable.REASON, {**restartable.EVIDENCE}

    def standstill(self, run: Run) -> str:  # most kinds cannot know
        """Return in one clause why the agent of a run makes no progress; empty if unknown."""
        return ""

    def remaining(self, run: Run) -> str:
        """Return in one clause the process or job that still runs although its run has ended; empty if there is none.

        Only kinds whose processes are not seen from here need it.
        """
        return ""

    def strays(self, root: str) -> List[Orphan]:
        """Return the containers and jobs that were started for runs below a root and that no run needs."""
        return []

    def left(self, run: Run) -> str:
        """Return in one clause the remains of a run that was not ended completely; empty if none remain."""
        verdict = self.judge([run])[run.id]
        return "" if verdict.liveness == GONE else verdict.words or "it is %s" % verdict.liveness


class _Unknown(LivenessProbe):
    """A kind without a module in this agent, for example in a record of a newer agent."""

    shows_processes = False
    sees_host = False

    def __init__(self, kind: str) -> None:
        self._words = "%r is not known to this agent" % kind

    def judge(self, runs: Sequence[Run]) -> Dict[str, RunLiveness]:
        verdict = RunLiveness(SILENT, {"runtime": self._words}, "its runtime %s" % self._words)
        return {run.id: verdict for run in runs}


def probe_of(kind: str) -> LivenessProbe:
    """Return the LivenessProbe of a kind of runtime.

    For an unknown kind, return one that answers `silent`.
    """
    return _find(kind) or _Unknown(kind)


def is_known(kind: str) -> bool:
    """Whether this agent has a module for a kind of runtime."""
    return _find(kind) is not None


def keeping_strays() -> Sequence[LivenessProbe]:
    """Return the probes of the kinds whose leftovers only the kind itself can find."""
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
