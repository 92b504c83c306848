"""Runs in a container: the host's engine restarts them and reports their status.

The engine is asked over its socket or through its program.

The label `launcher.run` proves which run a container belongs to. The name proves nothing, since any user may
choose it.
"""

from __future__ import annotations

import time
from typing import Dict, List, Optional, Sequence, Tuple

from ...record import strict_json
from ...record.rundir import Run
from ..liveness import GONE, SILENT, LivenessProbe, RunLiveness
from .docker_container import LIVENESS, Access, Container, EngineSilentError

KEPT_S = 1.0
SILENCE_KEPT_S = 5.0


class DockerLiveness(LivenessProbe):
    """The engine's answers, cached for a moment: a client that follows a run asks a hundred times a second.

    The silence of an engine is cached longer, and for all its runs, because each query to it takes the whole
    timeout.
    """

    shows_processes = False  # a container's processes end with it, and its pids mean nothing outside
    sees_host = False
    is_in_image = True
    # Not the default, `host-shutdown`: `docker stop` or a restart of the engine may be the cause.
    shutdown_reason = "container-stopped"

    def __init__(self) -> None:
        """Start without answers."""
        self._kept: Dict[str, Tuple[float, Optional[Container]]] = {}
        self._silent: Dict[str, Tuple[float, str]] = {}

    def judge(self, runs: Sequence[Run]) -> Dict[str, RunLiveness]:
        """Ask each engine about all its runs at once, and then about each container that is down."""
        by_engine: Dict[str, Tuple[Access, List[str]]] = {}
        for run in runs:
            access = _access(run)
            by_engine.setdefault(strict_json.encode(access), (access, []))[1].append(run.id)
        verdicts: Dict[str, RunLiveness] = {}
        for access, ids in by_engine.values():
            try:
                found = self.containers_of(access, ids)
            except EngineSilentError as error:
                words = "does not answer: %s" % error
                silent = RunLiveness(SILENT, {"engine": words}, "its engine %s" % words)
                verdicts.update(dict.fromkeys(ids, silent))
            else:
                verdicts.update({run_id: _verdict(container) for run_id, container in found.items()})
        return verdicts

    def forget(self, run: Run) -> None:
        """Ask the engine again the next time, even if it was silent."""
        self._kept.pop(run.id, None)
        self._silent.clear()

    def is_removed(self, run: Run) -> bool:
        """Whether the engine has no container of the run, not even a stopped one; False if it is silent."""
        try:
            return self.containers_of(_access(run), [run.id])[run.id] is None
        except EngineSilentError:
            return False

    def is_paused(self, run: Run) -> bool:
        """Whether the container is paused; False if the engine is silent."""
        try:
            container = self.containers_of(_access(run), [run.id])[run.id]
        except EngineSilentError:
            return False
        return container is not None and container["status"] == "paused"

    def standstill(self, run: Run) -> str:
        """Return a message if the engine does not answer; otherwise an empty text."""
        try:
            self.containers_of(_access(run), [run.id])
        except EngineSilentError as error:
            return "its engine does not answer (%s)" % error
        return ""

    def containers_of(self, access: Access, run_ids: Sequence[str]) -> Dict[str, Optional[Container]]:
        """Return the container of each run by its id; None if there is none. Raises EngineSilentError."""
        now = time.monotonic()
        fresh = [run_id for run_id in run_ids if now - self._kept.get(run_id, (-KEPT_S, None))[0] > KEPT_S]
        if fresh:
            key = strict_json.encode(access)
            since, reason = self._silent.get(key, (-SILENCE_KEPT_S, ""))
            if now - since <= SILENCE_KEPT_S:
                raise EngineSilentError(reason)
            # Most requests need no query, and http.client takes long to load.
            from .docker_engine import ask

            try:
                found = ask(access, fresh)
            except EngineSilentError as error:
                self._silent[key] = (time.monotonic(), str(error))
                raise
            self._kept.update({run_id: (time.monotonic(), found[run_id]) for run_id in fresh})
        return {run_id: self._kept[run_id][1] for run_id in run_ids}


PROBE = DockerLiveness()


def _access(run: Run) -> Access:
    runtime = run.prepared().get("runtime")
    access = runtime.get("engine") if isinstance(runtime, dict) else None
    return access if isinstance(access, dict) else {}


def _verdict(container: Optional[Container]) -> RunLiveness:
    if container is None:
        return RunLiveness(GONE, {"container": "removed"})
    liveness = LIVENESS.get(container["status"], GONE)
    words = "its container is %s" % container["status"]
    return RunLiveness(liveness, {"container": container} if liveness == GONE else None, words)
