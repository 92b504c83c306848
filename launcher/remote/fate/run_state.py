"""The state of a run: its last record, or what its locks and its container say where that record is not an end."""

from __future__ import annotations

import os
from typing import Any

from ..record.rundir import TERMINAL, Run, is_locked
from ..system import process
from . import docker


def host_of(run: Run) -> str | None:
    """Return the id of the host that the run was prepared on."""
    return run.prepared().get("host_id")


def runtime_of(run: Run) -> dict[str, Any]:
    """Return how the run was prepared to run: natively, or in a container of which engine."""
    found = run.prepared().get("runtime")
    return found if isinstance(found, dict) else {}


def state_of(run: Run) -> dict[str, Any]:
    """Return the run's state: `state.json` of its highest folder, or what its free locks make of it.

    A record made on another host is told as written, never judged: its locks mean nothing here.
    """
    last = run.last()
    if last is None:
        return {"state": "planned", "reason": None}
    held = last.is_locked()
    state = last.read_state() or {"state": "preparing", "reason": None}
    if state["state"] in (*TERMINAL, "waiting") or held:
        return state
    if not os.path.exists(last.state) and run.folder(last.number - 1).is_locked():
        return state  # its writer holds the folder before until it holds this one
    if host_of(run) != process.host_id():
        return dict(state, elsewhere=True)
    if is_locked(run.keeper_lock):
        return dict(state, state="resuming")
    if run.last().number != last.number or last.is_locked():  # type: ignore[union-attr] # folders are never removed
        return state_of(run)
    again = last.read_state()
    if again.get("state") in TERMINAL:
        return again
    runtime = runtime_of(run)
    return (
        _contained(run, runtime, state)
        if runtime.get("kind") == "docker"
        else dict(state, state="interrupted")
    )


def _contained(run: Run, runtime: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a run whose container nobody writes from: what becomes of that is the engine's to say.

    One that does not answer may bring it back when it does, so that is no interruption yet; the evidence says why.
    """
    try:
        container = docker.container_of(runtime, run.id)
    except docker.SilentError as error:
        return dict(state, state="resuming", evidence={"engine": "does not answer: %s" % error})
    if container is not None and container["status"] in docker.ALIVE:
        return dict(state, state="resuming")
    return dict(state, state="interrupted", evidence={"container": container or "removed"})


def is_silent(state: dict[str, Any]) -> bool:
    """Whether a run is in doubt because its engine does not answer."""
    return state["state"] == "resuming" and "engine" in (state.get("evidence") or {})
