"""Removal from a host: of a run that has ended, and of everything that no run refers to."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from ..liveness import run_state
from ..making import environment_build
from ..record.files import paths_in, remove_tree
from ..record.locks import Lock
from ..record.record_shape import read_plan
from ..record.rundir import RUN_ID, TERMINAL, UNREADABLE, Run, unreadable
from ..record.safe_open import open_regular
from ..store.last_copies import LastCopies, look_again
from ..store.outputs import OutputDigests
from ..store.store import Store
from ..store.tree_files import NamedContents
from ..system import process, socket_folders
from . import evidence_import

REMOVED = ".removed-"
SOCKET_FOLDER = "socket folder"
AGENT_AGE_S = 86_400.0
ABANDONED_S = 60.0
"""The least age in seconds of a half-made run that a client may remove by name."""
REMOVALS_S = 30.0
GROUP = 200
"""The number of runs that are judged together."""
MAX_ITEMS = 100_000
"""The most items of one collection. It limits the size of an answer."""


class NotRemovableError(Exception):
    """Raised for a run that must not be removed: it has not ended, or another client is working on it."""


class LastCopyError(Exception):
    """Raised for a run that must not be removed because it holds the last copies of its outputs."""

    def __init__(self, copies: LastCopies) -> None:
        """Store the files that would be lost."""
        super().__init__("it holds the last copies of %d files" % copies.number)
        self.copies = copies


def _pass() -> None:
    """Do nothing: the default of `let_go`."""


def remove_run(
    run: Run, find_last_copies: Optional[Callable[[Run], LastCopies]], let_go: Callable[[], object] = _pass
) -> int:
    """Remove a run that has ended. Return the bytes that this frees. The caller holds its contact lock.

    `find_last_copies` returns the files that must not be lost; None allows any loss. The run disappears in one
    step. `let_go` then releases the contact lock before the files are removed, because a network disk keeps an
    open file and its folder. `gc` or a sweep finishes an interrupted removal. Raises LastCopyError, and
    NotRemovableError for a run that has not ended.
    """
    state = run_state.state_of(run)["state"]
    if state not in TERMINAL and not (is_half_made(run) and _age_s(run.path) > ABANDONED_S):
        raise NotRemovableError("run %s is %s: stop it before you remove it" % (run.id, state))
    away = os.path.join(os.path.dirname(run.path), REMOVED + run.id)
    with _removal_lock(run.root, shared=True):
        found = find_last_copies(run) if find_last_copies else None
        if found is not None and (found.number or found.unseen):
            raise LastCopyError(found)
        with contextlib.suppress(OSError):  # a failure costs only the run's evidence
            evidence_import.import_evidence(run)
        os.rename(run.path, away)
        if found is not None and look_again(Run(away), OutputDigests(Run(away))) != found.look:
            os.rename(away, run.path)
            raise NotRemovableError(
                "run %s: a file changed while its files were compared; try again" % run.id
            )
        let_go()
        return remove(away)


def lock_of_removals(root: str) -> str:
    """Return the path of the lock that removals of runs hold."""
    return os.path.join(root, "hosts", process.host_id(), "locks", "removal")


def check_writable(root: str) -> None:
    """Raise OSError if the disk of a root is read-only, so that nothing on it can be removed."""
    try:
        os.close(open_regular(lock_of_removals(root), os.O_RDWR))
    except FileNotFoundError:
        return
    except OSError as error:
        raise OSError(error.errno, error.strerror, root) from None


@contextlib.contextmanager
def _removal_lock(root: str, *, shared: bool) -> Iterator[bool]:
    """Hold the removal lock, which removals of runs share. Yield whether this process got it."""
    path = lock_of_removals(root)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    lock = Lock.take(path, REMOVALS_S if shared else 0.0, shared=shared)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def finish_removal(path: str) -> bool:
    """Finish an interrupted removal of a run. Return false while another removal runs."""
    with _removal_lock(os.path.dirname(os.path.dirname(path)), shared=False) as is_alone:
        if is_alone:
            remove(path)
    return is_alone


def paths_of_runs(root: str) -> list[str]:
    """Return the paths of the runs below a root, including those whose removal was interrupted."""
    paths = paths_in(os.path.join(root, "runs"))
    return [path for path in paths if RUN_ID.fullmatch(os.path.basename(path).replace(REMOVED, "", 1))]


def has_code(path: str) -> bool:
    """Whether the run in a folder received its code.

    It asks the disk once, or twice for a run made before 2026-11-22.
    """
    return os.path.isdir(path + "/work/code") or os.path.isdir(path + "/code")


def is_half_made(run: Run) -> bool:
    """Whether a run of this host never received its code and no process holds it: its client and `serve` died."""
    if os.path.isdir(run.code):
        return False
    if run.place_id() is None:
        return _is_unrecorded(run)
    kinds = {folder.read_attempt().get("kind") for folder in run.newest()}
    is_ours = run_state.probe_of(run).is_here(run)
    return is_ours and kinds == {"prepare"} and run_state.state_of(run)["state"] == "interrupted"


def _is_unrecorded(run: Run) -> bool:
    """Whether a run has no record and no process holds it: its creator died between the first steps."""
    numbers = run.numbers()
    folders = [run.folder(number) for number in numbers]
    return len(numbers) <= 1 and not any(
        os.path.exists(folder.attempt) or folder.is_locked() for folder in folders
    )


def remove_half_made(run: Run) -> bool:
    """Remove a half-made run, unless another client is working on it. Return whether it is removed."""
    has_lock = os.path.isdir(run.control)  # made after the run's own folder
    lock = Lock.take(run.contact_lock, 0.0) if has_lock else None
    if has_lock and lock is None:
        return False
    try:
        if not is_half_made(run):
            return False
        away = move_aside(run)
    finally:
        if lock is not None:
            lock.release()
    remove(away)
    return True


def move_aside(run: Run) -> str:
    """Rename the folder of a run that never began, so that the run disappears in one step. Return the new path."""
    away = os.path.join(os.path.dirname(run.path), REMOVED + run.id)
    os.rename(run.path, away)
    return away


def _age_s(path: str) -> float:
    return time.time() - os.lstat(path).st_mtime


class Survey:
    """The names that the runs below a root refer to, as read so far.

    `unended` are the runs that have not ended, `images` the images that any run names. `unreadable` maps each
    run whose plan or manifest cannot be read to the reason: everything that it may need is kept. Runs are
    read one after another, and only their references are kept in memory.
    """

    def __init__(self, root: str, agent_folder: str) -> None:
        """Start without runs. `agent_folder` is this agent's folder."""
        self._root = root
        self._seen: Set[str] = set()
        self._contents = NamedContents()
        self._environments: Set[str] = set()
        self._agents = {agent_folder}
        self._old_agents = list(_old_agents(os.path.join(root, "agent"), agent_folder))
        self._odd: Dict[str, str] = {}
        self.unended: List[str] = []
        self.images: Set[str] = set()
        self.unreadable: Dict[str, str] = {}

    def look(self, advance: Callable[[int], None]) -> None:
        """Read the runs that were not read yet, including those that are made during this call.

        `advance` gets the size of each group.
        """
        while True:
            names = [os.path.basename(path) for path in paths_in(os.path.join(self._root, "runs"))]
            fresh = [name for name in names if RUN_ID.fullmatch(name) and name not in self._seen]
            if not fresh:
                return
            for start in range(0, len(fresh), GROUP):
                group = [Run(os.path.join(self._root, "runs", name)) for name in fresh[start : start + GROUP]]
                self._read_group(group)
                advance(len(group))

    def _read_group(self, group: List[Run]) -> None:
        for run in group:
            self._read(run)
        for run_id, state in run_state.states_of(group).items():
            if state["state"] not in TERMINAL:
                self.unended.append(run_id)
            if UNREADABLE in (state.get("evidence") or {}):
                self._odd[run_id] = state["evidence"][UNREADABLE]
        self._seen.update(run.id for run in group)

    def _read(self, run: Run) -> None:
        try:
            plan = read_plan(run.plan)
            self._contents.read(run.manifest)
        except OSError as error:
            self.unreadable[run.id] = unreadable(error)["evidence"][UNREADABLE]
            return
        self._environments.add(str((plan.get("environment") or {}).get("name")))
        if plan.get("image"):
            self.images.add(str(plan["image"].get("name")))
        if self._old_agents:  # without old agents, no run needs to be asked for its agent
            with contextlib.suppress(FileNotFoundError):  # it was just removed
                folders = list(run.newest())
                for folder in folders:
                    self._agents.add(str(folder.read_attempt().get("agent_folder")))
                if len(folders) < len(run.numbers()):  # older folders may name any agent
                    self._agents.update(self._old_agents)

    def doubts(self) -> Dict[str, str]:
        """Return the runs that cannot be read fully (plan, manifest or state), with the reasons."""
        return {**self._odd, **self.unreadable}

    def garbage(self) -> List[Dict[str, Any]]:
        """Return the items that no run below the root refers to.

        Each is {"kind", "path", "bytes"}; paths below the root are relative to it. The caller holds the store
        exclusively, from before `look` until `collect` has returned. Items beyond MAX_ITEMS are left for the
        next time.
        """
        return [
            {"kind": kind, "path": path.replace(self._root + os.sep, "", 1), "bytes": _size(path)}
            for kind, path in itertools.islice(self._unnamed(), MAX_ITEMS)
        ]

    def _unnamed(self) -> Iterator[Tuple[str, str]]:
        with _removal_lock(self._root, shared=False) as is_alone:
            for path in paths_in(os.path.join(self._root, "runs")) if is_alone else ():
                if os.path.basename(path).startswith(REMOVED):
                    yield "removed run", path
        for path in socket_folders.dead_folders(self._root):
            yield SOCKET_FOLDER, path
        if self.unreadable:  # an unreadable run may need any of the rest
            return
        for kind, path in Store(self._root).unnamed(self._contents):
            yield kind, path
        for path in environment_build.unnamed(self._root, self._environments):
            yield "environment", path
        for path in self._old_agents:
            if path not in self._agents:
                yield "old agent", path


def collect(root: str, items: List[Dict[str, Any]], advance: Callable[[int], None]) -> None:
    """Remove the items of a survey. `advance` is called for each.

    Raises OSError if an item cannot be removed, after all others are removed.
    """
    problem: Optional[OSError] = None
    for item in items:
        advance(0)
        take_away = _REMOVERS.get(item["kind"], remove)
        try:
            take_away(os.path.join(root, item["path"]))
        except OSError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _old_agents(folder: str, current: str) -> Iterator[str]:
    """Yield agents of other versions that were not uploaded recently."""
    for path in paths_in(folder):
        if path != current and time.time() - os.stat(path).st_mtime > AGENT_AGE_S:
            yield path


def _size(path: str) -> int:
    """Return the bytes that removing a file or folder frees: a file with other hard links keeps its bytes."""
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


_REMOVERS: Dict[str, Callable[[str], object]] = {
    "environment": environment_build.remove,
    SOCKET_FOLDER: socket_folders.remove,
}


def remove(path: str) -> int:
    """Remove a file or a folder with its contents, including read-only parts.

    Return the bytes that this frees.
    """
    if os.path.isdir(path) and not os.path.islink(path):
        return remove_tree(path)
    size = _size(path)
    os.unlink(path)
    return size
