"""What the host's container engine says of a run's container: one question over its socket, or through its program."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import time
from typing import Any, Dict, Optional, Tuple

from ..record import strict_json

TIMEOUT_S = 2.0
KEPT_S = 1.0
SILENCE_KEPT_S = 5.0
ENDING_S = 1.0
MOST_BYTES = 4 * 1024 * 1024
ALIVE = ("running", "restarting", "paused")
"""Those that go on by themselves. One that is only created waits for its client, or was left by it."""

_kept: Dict[str, Tuple[float, Optional[Dict[str, Any]]]] = {}
_silent: Dict[str, Tuple[float, str]] = {}


class SilentError(Exception):
    """An engine that does not answer: what it has made of a container is not known."""


def container_of(runtime: dict[str, Any], run_id: str) -> dict[str, Any] | None:
    """Return {"status", "exit", "oom", "error", "finished"} of a run's container, None where the engine has none.

    An answer is kept for a second: whoever follows a run asks a hundred times in it. An engine's silence is kept
    longer, for all its runs: each question to it costs the whole deadline. Raises SilentError.
    """
    way = runtime.get("engine") or {}
    known = _kept.get(run_id)
    if known is not None and time.monotonic() - known[0] <= KEPT_S:
        return known[1]
    key = strict_json.encode(way)
    silence = _silent.get(key)
    if silence is not None and time.monotonic() - silence[0] <= SILENCE_KEPT_S:
        raise SilentError(silence[1])
    try:
        container = _ask(way, run_id)
    except SilentError as error:
        _silent[key] = (time.monotonic(), str(error))
        raise
    _kept[run_id] = (time.monotonic(), container)
    return container


def forget(run_id: str) -> None:
    """Ask anew the next time: whoever acts on the answer must not act on an old one."""
    _kept.pop(run_id, None)
    _silent.clear()


def _ask(way: dict[str, Any], run_id: str) -> dict[str, Any] | None:
    """Ask for the container of a run: its label is the proof, for anybody may take its name."""
    connection = _Connection(way)
    try:
        connection.request("GET", "/containers/launch-%s/json" % run_id, headers={"Host": "launch"})
        answer = connection.getresponse()
        said = answer.read(MOST_BYTES)
        told = strict_json.decode(said)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SilentError(str(error) or type(error).__name__) from None
    finally:
        connection.close()
    if answer.status == 404:
        return None
    state = told.get("State") if isinstance(told, dict) else None
    if answer.status != 200 or not isinstance(state, dict):
        raise SilentError("it answers %d" % answer.status)
    config = told.get("Config")
    labels = config.get("Labels") if isinstance(config, dict) else None
    if not isinstance(labels, dict) or labels.get("launcher.run") != run_id:
        return None
    return {
        "status": str(state.get("Status")),
        "exit": state.get("ExitCode"),
        "oom": state.get("OOMKilled"),
        "error": state.get("Error") or None,
        "finished": state.get("FinishedAt"),
    }


class _Connection(http.client.HTTPConnection):
    """HTTP over the engine's socket, or over its program's `dial-stdio` where only that is allowed."""

    def __init__(self, way: dict[str, Any]) -> None:
        super().__init__("engine", timeout=TIMEOUT_S)
        self._way = way
        self._program: subprocess.Popen[bytes] | None = None

    def connect(self) -> None:
        path, program = self._way.get("socket"), self._way.get("program")
        if path and not self._way.get("sudo"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(TIMEOUT_S)
            self.sock.connect(str(path))
            return
        words = ["sudo", "-n"] if self._way.get("sudo") else []
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
