"""Removal from a host: of a run that has ended, and of everything that no run names any more."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from ..fate import run_state
from ..making import environment_build
from ..record.files import paths_in, remove_tree
from ..record.locks import Lock
from ..record.record_shape import PLAN, read_record
from ..record.rundir import RUN_ID, TERMINAL, UNREADABLE, Run, unreadable
from ..store.last_copies import LastCopies, look_again
from ..store.manifest import Manifest, read_manifest
from ..store.output_digests import OutputDigests
from ..store.store import Store
from ..system import process
from . import evidence_import

REMOVED = ".removed-"
AGENT_AGE_S = 86_400.0
ABANDONED_S = 60.0
"""How old a half-made run must be before a client may remove it by name."""
REMOVALS_S = 30.0


class NotRemovableError(Exception):
    """Raised for a run that must not be removed: it has not ended, or somebody is working on it."""


class LastCopyError(Exception):
    """Raised for a run that must not be removed because it holds the last copies of what it wrote."""

    def __init__(self, copies: LastCopies) -> None:
        """Hold what would be lost."""
        super().__init__("it holds the last copies of %d files" % copies.number)
        self.copies = copies


def remove_run(run: Run, find_last_copies: Optional[Callable[[Run], LastCopies]]) -> int:
    """Remove a run that has ended; return the bytes that this frees. The caller holds its contact lock.

    What `find_last_copies` finds must not be lost; None if all may be. Raises LastCopyError, and NotRemovableError for a
    run that has not ended. The run disappears in one step; a removal that is interrupted is finished by `gc` or a sweep.
    """
    state = run_state.state_of(run)["state"]
    if state not in TERMINAL and not (is_half_made(run) and _age_s(run.path) > ABANDONED_S):
        raise NotRemovableError("run %s is %s: stop it before you remove it" % (run.id, state))
    away = os.path.join(os.path.dirname(run.path), REMOVED + run.id)
    with _removal_lock(run.root, shared=True):
        found = find_last_copies(run) if find_last_copies else None
        if found is not None and (found.number or found.unseen):
            raise LastCopyError(found)
        with contextlib.suppress(OSError):  # it costs only what the run has shown
            evidence_import.take_in(run)
        os.rename(run.path, away)
        if found is not None and look_again(Run(away), OutputDigests(Run(away))) != found.look:
            os.rename(away, run.path)
            raise NotRemovableError("run %s: a file changed while they were compared; try again" % run.id)
        return remove(away)


@contextlib.contextmanager
def _removal_lock(root: str, *, shared: bool) -> Iterator[bool]:
    """Hold the lock of those who remove runs, shared by them; yield whether it is held."""
    folder = os.path.join(root, "hosts", process.host_id(), "locks")
    os.makedirs(folder, exist_ok=True)
    lock = Lock.take(os.path.join(folder, "removal"), REMOVALS_S if shared else 0.0, shared=shared)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def finish_removal(path: str) -> bool:
    """Remove what an interrupted removal left of a run; return False while a removal is going on."""
    with _removal_lock(os.path.dirname(os.path.dirname(path)), shared=False) as is_alone:
        if is_alone:
            remove(path)
    return is_alone


def paths_of_runs(root: str) -> list[str]:
    """Return the paths of the runs below a root, and of those whose removal was interrupted."""
    paths = paths_in(os.path.join(root, "runs"))
    return [path for path in paths if RUN_ID.fullmatch(os.path.basename(path).replace(REMOVED, "", 1))]


def is_half_made(run: Run) -> bool:
    """Whether a run of this host never received its code and nobody holds it: its client and our `serve` died."""
    if os.path.isdir(run.code):
        return False
    if run.place_id() is None:
        return _is_unrecorded(run)
    kinds = {run.folder(number).read_attempt().get("kind") for number in run.numbers()}
    is_ours = run.place_id() == process.host_id()
    return is_ours and kinds == {"prepare"} and run_state.state_of(run)["state"] == "interrupted"


def _is_unrecorded(run: Run) -> bool:
    """Whether nothing was recorded of a run and nobody holds it: what made it died between its first steps."""
    numbers = run.numbers()
    folders = [run.folder(number) for number in numbers]
    return len(numbers) <= 1 and not any(
        os.path.exists(folder.attempt) or folder.is_locked() for folder in folders
    )


def remove_half_made(run: Run) -> bool:
    """Remove a half-made run, unless another client is working on it; return whether it is gone."""
    has_lock = os.path.isdir(run.control)  # made after the run's own folder
    lock = Lock.take(run.contact_lock, 0.0) if has_lock else None
    if has_lock and lock is None:
        return False
    try:
        if not is_half_made(run):
            return False
        away = os.path.join(os.path.dirname(run.path), REMOVED + run.id)
        os.rename(run.path, away)
    finally:
        if lock is not None:
            lock.release()
    remove(away)
    return True


def _age_s(path: str) -> float:
    return time.time() - os.lstat(path).st_mtime


class Records(NamedTuple):
    """What the runs below a root name, and of which runs it cannot be read, with the reasons."""

    runs: List[Run]
    plans: List[Dict[str, Any]]
    manifests: List[Manifest]
    unreadable: Dict[str, str]


def read_records(root: str) -> Records:
    """Read what the runs below a root name."""
    records = Records([], [], [], {})
    for path in paths_in(os.path.join(root, "runs")):
        run = Run(path)
        if RUN_ID.fullmatch(run.id):
            records.runs.append(run)
            try:
                records.plans.append(read_record(run.plan, PLAN))
                records.manifests.append(read_manifest(run.manifest))
            except OSError as error:
                records.unreadable[run.id] = unreadable(error)["evidence"][UNREADABLE]
    return records


def garbage(root: str, agent_folder: str) -> list[dict[str, Any]]:
    """Return what no run below a root names, as {"kind", "path", "bytes"}; paths are relative to the root.

    The caller holds the store exclusively, from here until `collect` has returned.
    """
    return [
        {"kind": kind, "path": os.path.relpath(path, root), "bytes": _size(path)}
        for kind, path in _unnamed(root, agent_folder)
    ]


class Needed(NamedTuple):
    """The runs whose containers are needed, because they have not ended, and the images that any run names.

    `unreadable` are the runs that cannot be read, with the reasons: nothing goes that they may need.
    """

    runs: List[str]
    images: List[str]
    unreadable: Dict[str, str]


def needed(root: str) -> Needed:
    """Return what the runs below a root need of a container engine."""
    records = read_records(root)
    images = {str((plan.get("image") or {}).get("name")) for plan in records.plans if plan.get("image")}
    states = run_state.states_of(records.runs)
    unended = [run.id for run in records.runs if states[run.id]["state"] not in TERMINAL]
    odd = {name: state["evidence"][UNREADABLE] for name, state in states.items() if _is_unreadable(state)}
    return Needed(unended, sorted(images), {**odd, **records.unreadable})


def _is_unreadable(state: run_state.State) -> bool:
    return UNREADABLE in (state.get("evidence") or {})


def collect(root: str, items: list[dict[str, Any]]) -> None:
    """Remove what `garbage` found. Raises OSError for what this user may not remove, once all else is removed."""
    problem: Optional[OSError] = None
    for item in items:
        take_away = environment_build.remove if item["kind"] == "environment" else remove
        try:
            take_away(os.path.join(root, item["path"]))
        except OSError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _unnamed(root: str, agent_folder: str) -> Iterator[tuple[str, str]]:
    folders = [Run(path) for path in paths_in(os.path.join(root, "runs"))]
    with _removal_lock(root, shared=False) as is_alone:
        for folder in folders if is_alone else ():
            if folder.id.startswith(REMOVED):
                yield "removed run", folder.path
    records = read_records(root)
    if records.unreadable:  # it may need any of the rest
        return
    store = Store(root)
    for kind, path in store.unnamed(records.manifests):
        yield kind, path
    for path in environment_build.unnamed(root, records.plans):
        yield "environment", path
    yield from _old_agents(os.path.join(root, "agent"), agent_folder, records.runs)


def _old_agents(folder: str, current: str, runs: list[Run]) -> Iterator[tuple[str, str]]:
    """Yield the agents of other versions that started no run and were not brought here lately."""
    used = {current}
    for run in runs:
        for number in run.numbers():
            used.add(str(run.folder(number).read_attempt().get("agent_folder")))
    for path in paths_in(folder):
        if path not in used and time.time() - os.stat(path).st_mtime > AGENT_AGE_S:
            yield "old agent", path


def _size(path: str) -> int:
    """Return the bytes that removing a file or folder frees: a file with other names keeps its bytes."""
    if not os.path.isdir(path):
        status = os.lstat(path)
        return status.st_size if status.st_nlink == 1 else 0
    total, waiting = 0, [path]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:  # a path may be too long
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    status = entry.stat(follow_symlinks=False)
                    total += status.st_size if status.st_nlink == 1 else 0
    return total


def remove(path: str) -> int:
    """Remove a file or a folder with everything in it, read-only parts too; return the bytes that this frees."""
    if os.path.isdir(path) and not os.path.islink(path):
        return remove_tree(path)
    size = _size(path)
    os.unlink(path)
    return size
