"""The sweep: ends and removes the launcher's leftovers that no run needs.

These are processes, leases, uploads, half-made runs and temporary files. ownership.py decides who owns a
process. Signals are sent only by process.send, and each is recorded with its proof in
`hosts/<host-id>/sweeps.jsonl`. Leftovers that must stay are listed with an explanation and the person to ask.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, Collection, Dict, Iterator, List, Optional, Tuple

from ..cards import lease
from ..liveness import liveness, ownership, run_state
from ..making import environment_build, scratch_folder
from ..record import strict_json
from ..record.locks import Lock, is_locked
from ..record.rundir import TERMINAL, Run
from ..store.manifest import ShippingError
from ..store.secret_end import forget_secrets
from ..store.store import Store
from ..system import process, socket_folders
from . import garbage

Item = Dict[str, Any]
GRACE_S = 3.0
COLLECTING_S = 0.5  # for a parent to collect an ended child
LEAVING_S = 2.0  # for an agent to exit after it has recorded the end of its run
OLD_S = 3600.0
LONG_S = 1e9
"""The age of a run whose recorded end is in the future: its job wrote that time."""
MAX_BYTES = 1 << 20
MAX_CHARS = 40
ENDED, REMOVED, LEFT = "ended", "removed", "left"
NOT_NEEDED = "its run no longer needs it"
_TEMPORARY = re.compile(r".+\.([0-9]+)(?:\.[0-9a-f]{16})?\.tmp")


def sweep(root: str, *, dry_run: bool) -> List[Item]:
    """End and remove leftovers, or with `dry_run` only list them. Return the leftovers found.

    Each item is {"kind", "name", "run", "did", "why"}; `did` is `ended`, `removed`, or `left` if it stays.
    """
    items = [
        *end_leftovers(root, dry_run=dry_run),
        *_strays(root, dry_run=dry_run),
        *_leases(root, dry_run=dry_run),
        *_files(root, dry_run=dry_run),
    ]
    if items and not dry_run:
        _put_on_record(root, [dict(item, kind="sweep", what=item["kind"]) for item in items])
    return items


def ages(root: str, names: Collection[str]) -> Dict[str, Optional[float]]:
    """Return how many seconds ago each of these runs ended, None for a removed run.

    Runs that have not ended are left out.
    """
    runs = [Run(os.path.join(root, "runs", name)) for name in names]
    present = [run for run in runs if os.path.isdir(run.path)]
    found: Dict[str, Optional[float]] = {run.id: None for run in runs if run not in present}
    states = run_state.states_of([run for run in present if run_state.probe_of(run).is_here(run)])
    for run_id, state in states.items():
        if state["state"] in TERMINAL:
            age_s = time.time() - float(state.get("time") or 0.0)
            found[run_id] = age_s if age_s >= 0 else LONG_S
    return found


def remains(run: Run) -> List[str]:
    """Return the remaining processes and leases of a run that has ended, after a short wait for them to go.

    An agent in a container cannot release its leases, so they are released here. Its secrets are erased here
    too, because a recorded end does not prove that the agent erased them: a job can write that its run ended.
    """
    if not run_state.probe_of(run).sees_host and run_state.state_of(run)["state"] in TERMINAL:
        for let_go in (forget_secrets, lease.give_back):
            with contextlib.suppress(OSError):  # a read-only disk; the lease of an ended run holds no card
                let_go(run)
    deadline = time.monotonic() + LEAVING_S
    while True:
        groups = ownership.leftovers(run.root, [run.id]).ours.values()
        left = [_name(found) for group in groups for found in group]
        left += ["the lease of %s" % card for card in lease.of(run)]
        left += filter(None, [run_state.probe_of(run).remaining(run)])
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


# processes


def end_leftovers(root: str, *, dry_run: bool = False) -> List[Item]:
    """End the processes of runs that no longer need them, or only list them. Return the outcome for each.

    Processes that these runs have handed over to another program are listed, and get no signal.
    """
    found, handed_over = _leftovers(root)
    others = [
        _handed_over(run, left, receiver) for run, group in handed_over.items() for left, receiver in group
    ]
    if dry_run:
        return others + [
            _item("process", _name(leftover), run, ENDED, NOT_NEEDED)
            for run, group in found.items()
            for leftover in group
        ]
    with contextlib.ExitStack() as stack:
        held = [run for run in found if _hold(stack, Run(os.path.join(root, "runs", run)))]
        items = [
            _item("process", _name(leftover), run, LEFT, "another client is working on its run: sweep again")
            for run in set(found) - set(held)
            for leftover in found[run]
        ]
        return items + (_end(root, held) if held else []) + others


def _handed_over(run: str, left: process.Process, receiver: str) -> Item:
    why = "handed over to %s: not ended" % receiver
    return _item("handed-over", _name(left), run, LEFT, why, receiver=receiver)


def _leftovers(root: str) -> ownership.LeftoverProcesses:
    """Return the leftovers of runs, after waiting for agents that have just recorded the end of their runs."""
    deadline = time.monotonic() + LEAVING_S
    while True:
        found = ownership.leftovers(root)
        leaving = any(_has_agent(Run(os.path.join(root, "runs", run))) for run in found.ours)
        if not leaving or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def _has_agent(run: Run) -> bool:
    last = run.last()
    return is_locked(run.keeper_lock) or (last is not None and last.is_locked())


def _hold(stack: contextlib.ExitStack, run: Run) -> bool:
    """Keep other clients from restarting a run while its leftovers are ended.

    Return false if another client is working on the run.
    """
    try:
        lock = Lock.take(run.contact_lock, 0.0)
    except OSError:  # the lock belongs to another user who shares the root
        lock = None
    if lock is not None:
        stack.callback(lock.release)
    return lock is not None


def _end(root: str, runs: List[str]) -> List[Item]:
    """End the leftovers of some runs: SIGTERM, then SIGKILL after a grace.

    Return the outcome for each process.
    """
    names: Dict[Tuple[int, str], Tuple[str, str]] = {}

    def targets() -> List[process.Process]:
        found = ownership.leftovers(root, runs).ours
        fresh = [
            (leftover, run)
            for run, group in found.items()
            for leftover in group
            if (leftover.pid, leftover.start) not in names
        ]
        for leftover, run in fresh:
            names[leftover.pid, leftover.start] = (run, _name(leftover))
        if fresh:  # recorded before they get a signal, in case this process dies
            _put_on_record(
                root,
                [dict(_proof(root, run), kind="found", **leftover.proof("token")) for leftover, run in fresh],
            )
        return [leftover for group in found.values() for leftover in group] + _exiting(names)

    proofs: Dict[Tuple[int, str], Dict[str, Any]] = {}
    for proof in process.end(targets, "token", GRACE_S):
        proofs.setdefault((proof["pid"], proof["start"]), {}).update(proof)
        if "signal" in proof:
            run = names[proof["pid"], proof["start"]][0]
            _put_on_record(root, [dict(_proof(root, run), kind="signal", **proof)])
    deadline = time.monotonic() + COLLECTING_S
    while any(_is_zombie(*key) for key in names) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [_outcome(*key, proofs.get(key, {}), *run_and_name) for key, run_and_name in names.items()]


def _exiting(names: Collection[Tuple[int, str]]) -> List[process.Process]:
    """Return those of `names` that the kernel is ending: they still have their card, but no variables."""
    current = [(process.find(pid), start) for pid, start in names]
    return [
        found
        for found, start in current
        if found is not None and found.start == start and found.is_exiting and found.letter != "Z"
    ]


def _is_zombie(pid: int, start: str) -> bool:
    current = process.find(pid)
    return current is not None and current.start == start and current.letter == "Z" and current.parent != 1


def _outcome(pid: int, start: str, proof: Dict[str, Any], run: str, name: str) -> Item:
    current = process.find(pid)
    is_inits = current is not None and current.letter == "Z" and current.parent == 1  # init collects it soon
    if current is None or current.start != start or is_inits:
        return _item("process", name, run, ENDED, NOT_NEEDED, proof=proof)
    if current.letter == "Z":
        why = "ended, but not yet collected by its parent, %s: it holds neither memory nor a card"
        return _item("zombie", name, run, LEFT, why % _who(current.parent), proof=proof)
    waits = process.waits_for(pid)
    why = "survives SIGKILL (state %s%s): it ends when the kernel releases it, or with a reboot"
    place = ", in %s" % waits if waits else ""
    return _item("process", name, run, LEFT, why % (current.letter, place), proof=proof)


def _name(found: process.Process) -> str:
    return "pid %d (%s)" % (found.pid, _command(found.pid))


def _who(pid: int) -> str:
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return "pid %d" % pid
    return "pid %d (uid %d, %s)" % (pid, uid, _command(pid))


def _command(pid: int) -> str:
    """Return a process's command line, or only its name if it waits in the kernel, where reading might block."""
    current = process.find(pid)
    source = "comm" if current and current.letter == "D" else "cmdline"
    try:
        with open("/proc/%d/%s" % (pid, source), "rb") as file:
            words = file.read(4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        words = ""
    return words[:MAX_CHARS] or "no command line"


def _proof(root: str, run: str) -> Dict[str, Any]:
    state = run_state.state_of(Run(os.path.join(root, "runs", run)))
    space = os.readlink("/proc/self/ns/pid") if process.IS_LINUX else None
    return {
        "run": run,
        "state": state["state"],
        "host_id": process.host_id(),
        "boot_id": process.boot_id(),
        "pid_namespace": space,
    }


# jobs


def _strays(root: str, *, dry_run: bool) -> List[Item]:
    """End jobs that their runs no longer need, and which are not processes of this host."""
    items = []
    for stray in (found for kind in liveness.keeping_strays() for found in kind.strays(root)):
        is_ended = dry_run or stray.end()
        why = stray.why if is_ended else stray.why + "; it could not be ended"
        items.append(_item(stray.kind, stray.name, stray.run, ENDED if is_ended else LEFT, why))
    return items


# leases


def _leases(root: str, *, dry_run: bool) -> List[Item]:
    found = lease.stale(root, dry_run=dry_run)
    return [_item("lease", card, run, REMOVED, "its run no longer holds the card") for card, run in found]


# files


def _files(root: str, *, dry_run: bool) -> List[Item]:
    """Remove half-done files of dead agents. Files younger than an hour may still be in use."""
    items = []
    for kind, path, why in [*_torn(root), *_half_made(root), *_environments(root), *_temporary(root)]:
        did = REMOVED if dry_run or _is_removed(root, kind, path) else LEFT
        name = os.path.relpath(path, root) if path.startswith(root + os.sep) else path
        items.append(
            _item(kind, name, None, did, why if did == REMOVED else why + "; it could not be removed")
        )
    return items


def _is_removed(root: str, kind: str, path: str) -> bool:
    try:
        if kind == "removed run":
            return garbage.finish_removal(path)
        if kind == "half-made run":
            return garbage.remove_half_made(Run(path))
        if kind == "half-made environment":
            return environment_build.remove_half_made(root, path)
        if kind == "broken upload":
            return Store(root).uploads.remove(path)
        if kind == garbage.SOCKET_FOLDER:
            return socket_folders.remove(path)
        with Store(root).alone() if kind == "half-made copy" else contextlib.nullcontext():
            garbage.remove(path)
    except (OSError, ShippingError):  # another client uses it, or this user may not remove it
        return False
    return True


def _is_old(path: str) -> bool:
    """Whether nothing in the folder was added or removed for an hour."""
    try:
        return time.time() - os.lstat(path).st_mtime > OLD_S
    except OSError:
        return False


def _torn(root: str) -> Iterator[Tuple[str, str, str]]:
    for kind, path in Store(root).torn():
        if _is_old(path):
            yield kind, path, "the agent that made it died over an hour ago"


def _half_made(root: str) -> Iterator[Tuple[str, str, str]]:
    for path in garbage.paths_of_runs(root):
        if os.path.basename(path).startswith(garbage.REMOVED):
            yield "removed run", path, "its removal was interrupted"
        elif not garbage.has_code(path) and _is_old(path):
            with contextlib.suppress(OSError):  # it has no folder, or this user may not read it
                if garbage.is_half_made(Run(path)):
                    yield "half-made run", path, "its code never arrived: the client that launched it died"


def _environments(root: str) -> Iterator[Tuple[str, str, str]]:
    for path in environment_build.half_made(
        root
    ):  # of any age: its free lock shows that no process works on it
        yield "half-made environment", path, "the agent that made or removed it died"


def _temporary(root: str) -> Iterator[Tuple[str, str, str]]:
    folders = [folder for folder, _, _ in os.walk(os.path.join(root, "hosts", process.host_id()))]
    for path in (os.path.join(folder, name) for folder in folders for name in sorted(os.listdir(folder))):
        found = _TEMPORARY.fullmatch(os.path.basename(path))
        if found and _is_old(path) and process.find(int(found[1])) is None:
            yield "temporary file", path, "the process that wrote it died"
    for path in scratch_folder.dead_folders():
        yield "build folder", path, "the agent that built in it died"
    for path in socket_folders.dead_folders(root):
        yield garbage.SOCKET_FOLDER, path, "the agent that listened in it died"


# the record


def _item(kind: str, name: str, run: Optional[str], did: str, why: str, **more: Any) -> Item:
    return {"kind": kind, "name": name, "run": run, "did": did, "why": why, **more}


def record_of(root: str) -> str:
    """Return the path of the record of all sweeps on this host, one JSON object per line."""
    return os.path.join(root, "hosts", process.host_id(), "sweeps.jsonl")


def _put_on_record(root: str, lines: List[Dict[str, Any]]) -> None:
    """Append lines. A full file is first renamed to `.old`, which replaces the previous one."""
    path = record_of(root)
    text = "".join(strict_json.encode(dict(line, version=1, time=time.time())) + "\n" for line in lines)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_size > MAX_BYTES:
            os.replace(path, path + ".old")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
