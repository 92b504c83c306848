"""What a client may read of a run: its state, and what is new in its numbered folders since the client's cursors.

A cursor is (folder, file, offset, SHA-256 of the min(4096, offset) bytes before it). A short file or another hash means
another file: it is sent again from 0. Small files are sent whole when their hash is another.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from . import engine, process
from .rundir import GROWING_FILES, SMALL_FILES, TERMINAL, Folder, Run, is_locked, read_json

TAIL = 4096
MAX_BYTES = 8 * 1024 * 1024
IN_DOUBT = ("resuming", "interrupted", "cancel-incomplete")


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
        container = engine.container_of(runtime, run.id)
    except engine.SilentError as error:
        return dict(state, state="resuming", evidence={"engine": "does not answer: %s" % error})
    if container is not None and container["status"] in engine.ALIVE:
        return dict(state, state="resuming")
    return dict(state, state="interrupted", evidence={"container": container or "removed"})


def is_silent(state: dict[str, Any]) -> bool:
    """Whether a run is in doubt because its engine does not answer."""
    return state["state"] == "resuming" and "engine" in (state.get("evidence") or {})


def summary(run: Run) -> dict[str, Any]:
    """Return one line about a run: id, state, reason, attempt, step, steps, loss, job, card; the last remedy.

    `evidence` says why it is in doubt, or what class of failure it ended in; `parent` which run it continues.
    """
    plan = read_json(run.plan)
    state = state_of(run)
    evidence = state.get("evidence")
    last = run.last()
    beat = read_json(last.heartbeat) if last else {}
    latest = state if state["state"] in TERMINAL or beat.get("step") is None else beat
    prepared = run.prepared()
    return {
        "run": run.id,
        "state": state["state"],
        "reason": state.get("reason"),
        "attempt": state.get("attempt"),
        "step": latest.get("step"),
        "steps": plan.get("steps"),
        "loss": latest.get("loss"),
        "grace_s": beat.get("grace_s"),
        "job": plan.get("job"),
        "card": (plan.get("profile") or {}).get("title"),
        "engine": runtime_of(run).get("engine"),
        "evidence": evidence
        if state["state"] in (*IN_DOUBT, "waiting") or "class" in (evidence or {})
        else None,
        "remedy": _last_remedy(run),
        "rehearsed": plan.get("rehearsed") is True,
        "parent": prepared.get("parent"),
        "time": prepared.get("time"),
    }


def _last_remedy(run: Run) -> dict[str, Any] | None:
    """Return the remedy that was last found, with the attempt and the step that it answers."""
    for number in reversed(run.numbers()):
        state = run.folder(number).read_state()
        if state.get("remedy"):
            return {"attempt": state.get("attempt"), "step": state.get("step"), **state["remedy"]}
    return None


def read(run: Run, args: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return (answer, bytes). `args`: cursors by "NNNN/file", `from` (first folder wanted), `state` known.

    The answer lists parts {path, offset, size} in the order of the bytes; offset 0 for a file that begins again. The
    state is read before the files: when it is terminal and nothing is left to send, all of the run has been sent.
    """
    state = state_of(run)
    numbers = run.numbers()  # once, before the files: a folder that appears meanwhile is the next answer's
    cursors = args.get("cursors") or {}
    parts: list[dict[str, Any]] = []
    pieces: list[bytes] = []
    room = MAX_BYTES
    if args.get("plan") is not True:
        room -= _whole(run.plan, "plan.json", None, parts, pieces)
    for number in numbers:
        if number < int(args.get("from", 0)):
            continue
        folder = run.folder(number)
        for name in SMALL_FILES:
            key = "%04d/%s" % (number, name)
            room -= _whole(os.path.join(folder.path, name), key, cursors.get(key), parts, pieces)
        for name in GROWING_FILES:
            if room > 0:
                room -= _growth(folder, name, cursors.get("%04d/%s" % (number, name)), room, parts, pieces)
    answer = {
        "state": state,
        "parts": parts,
        "last": numbers[-1:],
        "is_full": room <= 0,
        "changed": strip(state) != args.get("state"),
    }
    return answer, b"".join(pieces)


def strip(state: dict[str, Any]) -> list[Any]:
    """Return what makes a state another state in a client's eyes."""
    return [state.get("state"), state.get("reason"), state.get("attempt")]


def _whole(path: str, key: str, known: Any, parts: list[dict[str, Any]], pieces: list[bytes]) -> int:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return 0
    if known is not None and known.get("sha256") == hashlib.sha256(data).hexdigest():
        return 0
    parts.append({"path": key, "offset": 0, "size": len(data), "whole": True})
    pieces.append(data)
    return len(data)


def _growth(
    folder: Folder, name: str, cursor: Any, room: int, parts: list[dict[str, Any]], pieces: list[bytes]
) -> int:
    path = os.path.join(folder.path, name)
    offset = int(cursor["offset"]) if cursor else 0
    try:
        size = os.stat(path).st_size
        if cursor and size == offset:
            return 0  # an append-only file of the same length: nothing new, nothing to hash
        with open(path, "rb") as file:
            if offset and not _continues(file, offset, size, str(cursor.get("sha256"))):
                offset = 0
            file.seek(offset)
            data = file.read(room)
    except FileNotFoundError:
        return 0
    if data or not cursor or offset != int(cursor["offset"]):  # an empty file is a file of the mirror too
        parts.append({"path": "%04d/%s" % (folder.number, name), "offset": offset, "size": len(data)})
        pieces.append(data)
    return len(data)


def _continues(file: Any, offset: int, size: int, sha256: str) -> bool:
    if size < offset:
        return False
    before = min(TAIL, offset)
    file.seek(offset - before)
    return hashlib.sha256(file.read(before)).hexdigest() == sha256
