"""Runs in a container: the host's engine restarts them, and says over its socket, or through its program, what became of them.

A container belongs to a run by its label, `launcher.run`; its name proves nothing, since anybody may use it.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import time
import urllib.parse
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..record import strict_json
from ..record.rundir import Run
from .fate import ALIVE, COMING_BACK, GONE, SILENT, Fate, Verdict

TIMEOUT_S = 2.0
KEPT_S = 1.0
SILENCE_KEPT_S = 5.0
ENDING_S = 1.0
MOST_BYTES = 4 * 1024 * 1024
LABEL = "launcher.run"
FATES = {"running": ALIVE, "paused": ALIVE, "restarting": COMING_BACK}
"""The fate of a container by its status; with any other status, `created` too, nothing starts it but a client."""

Access = Mapping[str, Any]
"""How to reach an engine, as a run's record has it: {"socket", "program", "sudo"}."""
Container = Dict[str, Any]
"""{"status", "exit", "oom", "error", "finished"}, as shown to people and kept as evidence."""


class SilentError(Exception):
    """Raised when an engine does not answer, so that the state of its containers is unknown."""


class Docker(Fate):
    """The engine's answers, kept for a moment: a client that follows a run asks a hundred times a second.

    An engine's silence is kept longer, and for all its runs, because each question to it takes the whole timeout.
    """

    shows_processes = False  # what a container held went with it, and its pids mean nothing outside
    sees_host = False
    is_in_image = True

    def __init__(self) -> None:
        """Start without answers."""
        self._kept: Dict[str, Tuple[float, Optional[Container]]] = {}
        self._silent: Dict[str, Tuple[float, str]] = {}

    def judge(self, runs: Sequence[Run]) -> Dict[str, Verdict]:
        """Ask each engine about all its runs at once, and then about each container that is down."""
        by_engine: Dict[str, Tuple[Access, List[str]]] = {}
        for run in runs:
            access = _access(run)
            by_engine.setdefault(strict_json.encode(access), (access, []))[1].append(run.id)
        verdicts: Dict[str, Verdict] = {}
        for access, ids in by_engine.values():
            try:
                found = self.containers_of(access, ids)
            except SilentError as error:
                words = "does not answer: %s" % error
                silent = Verdict(SILENT, {"engine": words}, "its engine %s" % words)
                verdicts.update(dict.fromkeys(ids, silent))
            else:
                verdicts.update({run_id: _verdict(container) for run_id, container in found.items()})
        return verdicts

    def forget(self, run: Run) -> None:
        """Ask the engine again the next time, even if it was silent."""
        self._kept.pop(run.id, None)
        self._silent.clear()

    def is_removed(self, run: Run) -> bool:
        """Whether the engine has no container of the run, not even one that is down; False if it is silent."""
        try:
            return self.containers_of(_access(run), [run.id])[run.id] is None
        except SilentError:
            return False

    def is_paused(self, run: Run) -> bool:
        """Whether the container is paused; False if the engine is silent."""
        try:
            container = self.containers_of(_access(run), [run.id])[run.id]
        except SilentError:
            return False
        return container is not None and container["status"] == "paused"

    def standstill(self, run: Run) -> str:
        """Say that the engine is silent, if it is."""
        try:
            self.containers_of(_access(run), [run.id])
        except SilentError as error:
            return "its engine does not answer (%s)" % error
        return ""

    def containers_of(self, access: Access, run_ids: Sequence[str]) -> Dict[str, Optional[Container]]:
        """Return the container of each run by its id, None if the engine has none. Raises SilentError."""
        now = time.monotonic()
        fresh = [run_id for run_id in run_ids if now - self._kept.get(run_id, (-KEPT_S, None))[0] > KEPT_S]
        if fresh:
            key = strict_json.encode(access)
            since, reason = self._silent.get(key, (-SILENCE_KEPT_S, ""))
            if now - since <= SILENCE_KEPT_S:
                raise SilentError(reason)
            try:
                found = _ask(access, fresh)
            except SilentError as error:
                self._silent[key] = (time.monotonic(), str(error))
                raise
            self._kept.update({run_id: (time.monotonic(), found[run_id]) for run_id in fresh})
        return {run_id: self._kept[run_id][1] for run_id in run_ids}


FATE = Docker()


def _access(run: Run) -> Access:
    runtime = run.prepared().get("runtime")
    access = runtime.get("engine") if isinstance(runtime, dict) else None
    return access if isinstance(access, dict) else {}


def _verdict(container: Optional[Container]) -> Verdict:
    if container is None:
        return Verdict(GONE, {"container": "removed"})
    fate = FATES.get(container["status"], GONE)
    words = "its container is %s" % container["status"]
    return Verdict(fate, {"container": container} if fate == GONE else None, words)


# the engine's API


def _ask(access: Access, run_ids: Sequence[str]) -> Dict[str, Optional[Container]]:
    """Ask an engine for the containers of some runs.

    For several runs, all are listed first. Only those that are down are then asked for one by one, because a list does
    not say how they ended. Raises SilentError.
    """
    connection = _Connection(access)
    try:
        listed = _list(connection) if len(run_ids) > 1 else None
        found: Dict[str, Optional[Container]] = {}
        for run_id in run_ids:
            if listed is None:
                found[run_id] = _inspect(connection, run_id)
            elif listed.get(run_id) in FATES:
                found[run_id] = {"status": listed[run_id]}
            else:
                found[run_id] = _inspect(connection, run_id) if run_id in listed else None
    finally:
        connection.close()
    return found


def _list(connection: _Connection) -> Dict[str, str]:
    """Return the status of every run's container by the run's id; a container counts by its label and its name."""
    filters = urllib.parse.quote(strict_json.encode({"label": [LABEL]}))
    status, body = connection.get("/containers/json?all=1&filters=%s" % filters)
    if status != 200 or not isinstance(body, list):
        raise SilentError("it answers %d" % status)
    statuses = {}
    for entry in body:
        run_id = (entry.get("Labels") or {}).get(LABEL)
        if "/launch-%s" % run_id in (entry.get("Names") or ()):
            statuses[str(run_id)] = str(entry.get("State"))
    return statuses


def _inspect(connection: _Connection, run_id: str) -> Optional[Container]:
    status, body = connection.get("/containers/launch-%s/json" % run_id)
    if status == 404:
        return None
    state = body.get("State") if isinstance(body, dict) else None
    if status != 200 or not isinstance(state, dict):
        raise SilentError("it answers %d" % status)
    config = body.get("Config")
    labels = config.get("Labels") if isinstance(config, dict) else None
    if not isinstance(labels, dict) or labels.get(LABEL) != run_id:
        return None
    return {
        "status": str(state.get("Status")),
        "exit": state.get("ExitCode"),
        "oom": state.get("OOMKilled"),
        "error": state.get("Error") or None,
        "finished": state.get("FinishedAt"),
    }


class _Connection(http.client.HTTPConnection):
    """HTTP over the engine's socket, or over its program's `dial-stdio` where only the program may be used."""

    def __init__(self, access: Access) -> None:
        super().__init__("engine", timeout=TIMEOUT_S)
        self._access = access
        self._program: subprocess.Popen[bytes] | None = None

    def get(self, path: str) -> Tuple[int, Any]:
        """Return the status and the JSON of an answer. Raises SilentError."""
        try:
            self.request("GET", path, headers={"Host": "launch"})
            response = self.getresponse()
            return response.status, strict_json.decode(response.read(MOST_BYTES).decode())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SilentError(str(error) or type(error).__name__) from None

    def connect(self) -> None:
        path, program = self._access.get("socket"), self._access.get("program")
        if path and not self._access.get("sudo"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(TIMEOUT_S)
            self.sock.connect(str(path))
            return
        words = ["sudo", "-n"] if self._access.get("sudo") else []
        words += ["env", "DOCKER_HOST=unix://%s" % path] if path else []
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(TIMEOUT_S)
        try:
            self._program = subprocess.Popen(
                [*words, str(program), "system", "dial-stdio"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
            )
        finally:
            theirs.close()

    def close(self) -> None:
        super().close()
        if self._program is not None:
            with contextlib.suppress(PermissionError):  # root's, by sudo: it ends with its standard input
                self._program.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._program.wait(ENDING_S)
            self._program = None
