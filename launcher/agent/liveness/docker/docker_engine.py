"""Queries to an engine about the containers of runs: HTTP, over its socket or through its program."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import urllib.parse
from typing import Any, Dict, Optional, Sequence, Tuple

from ...record import strict_json
from .docker_container import LIVENESS, Access, Container, EngineSilentError

TIMEOUT_S = 2.0
ENDING_S = 1.0
MAX_BYTES = 4 * 1024 * 1024
LABEL = "launcher.run"


def ask(access: Access, run_ids: Sequence[str]) -> Dict[str, Optional[Container]]:
    """Ask an engine for the containers of some runs.

    For several runs, all containers are listed first. Only those that are down are then inspected one by one,
    because the list does not contain how they ended. Raises EngineSilentError.
    """
    connection = _EngineConnection(access)
    try:
        listed = _list(connection) if len(run_ids) > 1 else None
        found: Dict[str, Optional[Container]] = {}
        for run_id in run_ids:
            if listed is None:
                found[run_id] = _inspect(connection, run_id)
            elif listed.get(run_id) in LIVENESS:
                found[run_id] = {"status": listed[run_id]}
            else:
                found[run_id] = _inspect(connection, run_id) if run_id in listed else None
    finally:
        connection.close()
    return found


def _list(connection: _EngineConnection) -> Dict[str, str]:
    """Return the status of every run's container by the run's id.

    A container counts if both its label and its name match.
    """
    filters = urllib.parse.quote(strict_json.encode({"label": [LABEL]}))
    status, body = connection.get("/containers/json?all=1&filters=%s" % filters)
    if status != 200 or not isinstance(body, list):
        raise EngineSilentError("it answers %d" % status)
    statuses = {}
    for entry in body:
        run_id = (entry.get("Labels") or {}).get(LABEL)
        if "/launch-%s" % run_id in (entry.get("Names") or ()):
            statuses[str(run_id)] = str(entry.get("State"))
    return statuses


def _inspect(connection: _EngineConnection, run_id: str) -> Optional[Container]:
    status, body = connection.get("/containers/launch-%s/json" % run_id)
    if status == 404:
        return None
    state = body.get("State") if isinstance(body, dict) else None
    if status != 200 or not isinstance(state, dict):
        raise EngineSilentError("it answers %d" % status)
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


class _EngineConnection(http.client.HTTPConnection):
    """HTTP over the engine's socket, or over its program's `dial-stdio` if only the program may be used."""

    def __init__(self, access: Access) -> None:
        super().__init__("engine", timeout=TIMEOUT_S)
        self._access = access
        self._program: subprocess.Popen[bytes] | None = None

    def get(self, path: str) -> Tuple[int, Any]:
        """Return the status and the JSON of an answer. Raises EngineSilentError."""
        try:
            self.request("GET", path, headers={"Host": "launch"})
            response = self.getresponse()
            return response.status, strict_json.decode(response.read(MAX_BYTES).decode())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineSilentError(str(error) or type(error).__name__) from None

    def connect(self) -> None:
        path, program = self._access.get("socket"), self._access.get("program")
        if path and not self._access.get("sudo"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(TIMEOUT_S)
            self.sock.connect(str(path))
            return
        words = ["sudo", "-n"] if self._access.get("sudo") else []
        variable = "CONTAINER_HOST" if self._access.get("name") == "podman" else "DOCKER_HOST"
        words += ["env", "%s=unix://%s" % (variable, path)] if path else []
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
            # With sudo the program belongs to root: it ends when its standard input closes.
            with contextlib.suppress(PermissionError):
                self._program.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._program.wait(ENDING_S)
            self._program = None
