"""What a run takes over from its parent, the run that it continues: the newest whole checkpoint, code and data.

The parent has ended, on this host, and is never written to: a checkpoint's files get a second name in the child, or are
copied, so that either run can be removed without harm to the other.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import time
from typing import TYPE_CHECKING, Any, Callable, Collection, List, Mapping, TypedDict, cast

from ..diagnosis import remedy
from ..liveness import run_state
from ..record.files import read_json, remove_folder, sync_folder
from ..record.locks import is_locked
from ..record.rundir import TERMINAL, Folder, Run
from ..record.safe_open import RunPath, opened_folder, parent_of
from . import checkpoints, late_seals
from .manifest import Manifest, check, read_manifest, shared_modes_of
from .store import Store

if TYPE_CHECKING:
    from ..record.run_records import ChangesRecord, ParentRecord

LET_GO_S = 5.0
"""How long the agent of a run that has just ended may take to release its locks."""
_CHANGES_OF = {"batch.micro": ("micro_batch", "accumulation")}
"""The changes by remedies that a key of a job overrides; another key overrides the one of its name."""


class ParentError(Exception):
    """Raised for a run that cannot be continued; `code` is for programs, the text for people."""

    def __init__(self, code: str, message: str) -> None:
        """Hold both."""
        super().__init__(message)
        self.code = code


class DamagedCheckpoint(TypedDict):
    """A checkpoint that a run cannot go on from, by its name, and what is wrong with it."""

    checkpoint: str
    wrong: str


class Inherited(TypedDict):
    """What a run has from its parent, and the newer checkpoints that were passed over."""

    parent: ParentRecord
    changes: ChangesRecord
    passed_over: List[DamagedCheckpoint]


def inherit(parent: Run, child: Run, prepared: Folder, store: Store, asked: Collection[str]) -> Inherited:
    """Give a run that is being prepared what its parent left; return what that is, and which checkpoints were passed over.

    `prepared` is the child's first folder. `asked` are the keys of its plan that the user set: what remedies changed in the
    others stays in force. The code comes last: a run without it never began. Raises ParentError.
    """
    check_ended(parent)
    in_force = remedy.in_force(parent.newest_records())
    sealed = _unspoilt(parent, in_force)
    if not resumes(parent):
        words = "the script of run %s never called worker.resume_from(): it would start at step 1 again"
        raise ParentError("cannot-resume", words % parent.id)
    step, path, passed_over = _newest_whole(parent, sealed)
    steps = child.read_plan().get("steps")
    if steps is not None and steps <= step:
        words = "steps = %d is not above %d, the step of the checkpoint that run %s left"
        raise ParentError("steps", words % (steps, step, parent.id))
    name = os.path.basename(path)
    # A script that saves into one folder again and again would write into the parent's files.
    is_written_once = re.search(r"(?<![0-9])0*%d\Z" % step, name) is not None
    target = os.path.join(child.checkpoints, name)
    take_over(RunPath(parent.path, path), target, links=is_written_once)
    origin: ParentRecord = {"run": parent.id, "checkpoint": name, "step": step}
    set_anew = {name for key in asked for name in _CHANGES_OF.get(key, (key,))}
    kept = {name: value for name, value in in_force.changes.items() if name not in set_anew}
    changes = cast("ChangesRecord", kept)
    child.write_prepared(prepared, {**child.prepared(), "parent": origin, "changes": changes})
    _place(parent, child, store)
    return {"parent": origin, "changes": changes, "passed_over": passed_over}


# whether the parent can be continued


def check_ended(parent: Run) -> None:
    """Raise ParentError for a run that has not ended, or that left something running."""
    state = run_state.state_of(parent)["state"]
    if state not in TERMINAL:
        raise ParentError("not-ended", "run %s is %s" % (parent.id, state))
    deadline = time.monotonic() + LET_GO_S
    while _is_held(parent):
        if time.monotonic() >= deadline:
            raise ParentError("held", "run %s is %s, but its agent is still there" % (parent.id, state))
        time.sleep(0.02)
    if state == "stop-incomplete":
        left = run_state.probe_of(parent).left(parent)
        if left:
            raise ParentError("held", "run %s could not be ended whole: %s" % (parent.id, left))


def _is_held(run: Run) -> bool:
    last = run.last()
    return is_locked(run.keeper_lock) or (last is not None and last.is_locked())


def resumes(run: Run) -> bool:
    """Whether the script took its checkpoint from the worker, and its command line named no other."""
    consumed: set[str] = set()
    for folder in run.newest():
        consumed.update(folder.read_state().get("consumed") or [])
    return "resume" in consumed and "held resume" not in consumed


def newest_whole(run: Run) -> tuple[str, list[DamagedCheckpoint]]:
    """Return the path of the checkpoint that a run can be continued from, and the newer ones that were passed over.

    Every file of it is read. Raises ParentError.
    """
    in_force = remedy.in_force(run.newest_records())
    _, path, passed_over = _newest_whole(run, _unspoilt(run, in_force))
    return path, passed_over


def _unspoilt(run: Run, in_force: remedy.InForce) -> list[tuple[int, str]]:
    """Return step and path of the sealed checkpoints that no failure has spoilt. Raises ParentError if there are none."""
    # An agent that died before it answered a failure has not set its checkpoints aside.
    bound = in_force.failure.since if in_force.failure is not None else None
    sealed = checkpoints.sealed(run.checkpoints)
    sealed = [(step, path) for step, path in sealed if bound is None or step < bound]
    if not sealed:
        raise ParentError("no-checkpoint", "run %s left no checkpoint to continue from" % run.id)
    return sealed


def _newest_whole(run: Run, sealed: list[tuple[int, str]]) -> tuple[int, str, list[DamagedCheckpoint]]:
    """Return step and path of the newest whole checkpoint, and the newer ones that were passed over, with the reasons."""
    passed_over: list[DamagedCheckpoint] = []
    late = late_seals.late(run)
    for step, path in reversed(sealed):
        wrong = late.get(os.path.basename(path)) or _what_leads_away(run, path) or what_is_wrong(path)
        if wrong is None:
            return step, path, passed_over
        passed_over.append({"checkpoint": os.path.basename(path), "wrong": wrong})
    words = ", ".join("%s (%s)" % (damaged["checkpoint"], damaged["wrong"]) for damaged in passed_over[:5])
    raise ParentError("no-checkpoint", "run %s left no whole checkpoint: %s" % (run.id, words))


# a checkpoint


def _what_leads_away(run: Run, path: str) -> str | None:
    """Say what of a checkpoint lies where the job of a container sees nothing, as behind a link to another run; None if nothing."""
    if run_state.probe_of(run).sees_host:
        return None
    seen = (run.work, run.cache, os.path.join(run.root, "store", "data"))
    places = tuple(os.path.realpath(place) + os.sep for place in seen)
    files = read_json(os.path.join(path, checkpoints.MANIFEST)).get("files")
    for name in (checkpoints.MANIFEST, *(files if isinstance(files, dict) else ())):
        try:
            if not os.path.realpath(os.path.join(path, name)).startswith(places):
                return "%s lies outside of the run" % name
        except ValueError:  # no file can have this name
            continue
    return None


def what_is_wrong(path: str) -> str | None:
    """Say how a sealed checkpoint differs from its manifest, or why it cannot be taken over; None if it is whole."""
    files = read_json(os.path.join(path, checkpoints.MANIFEST)).get("files")
    for name in files if isinstance(files, dict) else ():
        if leads_out(name):
            return "its manifest names %s" % name
    return checkpoints.what_is_wrong(path)


def leads_out(name: str) -> bool:
    """Whether a manifest's name of a file does not plainly mean one below the checkpoint's folder."""
    return os.path.isabs(name) or os.path.normpath(name) != name or name.split("/", maxsplit=1)[0] == ".."


def take_over(path: str, target: str, *, links: bool) -> None:
    """Make a second whole checkpoint: with `links` by second names of its files if the file system can, else by copies.

    It appears in one step. Raises OSError if the disk refuses.
    """
    top = path if isinstance(path, RunPath) else RunPath(path, path)
    files = read_json(os.path.join(path, checkpoints.MANIFEST))["files"]

    def put(name: str, entry: Mapping[str, Any], copy: str) -> None:
        source = top.below(name)
        if not (links and _is_linked(source, copy)):
            copy_checked(source, copy, entry["sha256"])

    manifest = functools.partial(copy_checked, os.path.join(path, checkpoints.MANIFEST))
    publish(target, files, put, manifest)


def publish(
    target: str,
    files: Mapping[str, Mapping[str, Any]],
    put: Callable[[str, Mapping[str, Any], str], None],
    put_manifest: Callable[[str], None],
) -> None:
    """Make a checkpoint of these files of a manifest, in one step and durably. Raises OSError if the disk refuses.

    `put` makes the file of this name and entry at a path, and `put_manifest` the manifest, the last one.
    """
    folder = os.path.dirname(target)
    hidden = os.path.join(folder, ".%s.new" % os.path.basename(target))
    remove_folder(hidden)  # of a try that failed
    os.makedirs(hidden)
    folders = {hidden}
    for name, entry in sorted(files.items()):
        copy = os.path.join(hidden, name)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        folders.add(os.path.dirname(copy))
        put(name, entry, copy)
    put_manifest(os.path.join(hidden, checkpoints.MANIFEST))
    for written in folders:
        sync_folder(written)
    os.rename(hidden, target)
    sync_folder(folder)


def _is_linked(source: RunPath, copy: str) -> bool:
    """Give a file a second name; return False if it is behind a link, on another file system, or on one without hard links.

    A file that a link leads to may be any file of the user: its contents are compared, so it is copied.
    """
    try:
        with opened_folder(parent_of(source)) as folder:
            os.link(os.path.basename(source), copy, src_dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    if not os.path.islink(copy):
        return True
    os.unlink(copy)
    return False


def copy_checked(source: str, copy: str, sha256: str | None = None) -> None:
    """Copy a file durably. Raises ParentError if the copy does not have this SHA-256."""
    shutil.copyfile(source, copy)
    with open(copy, "rb") as file:
        os.fsync(file.fileno())
    if sha256 is not None and checkpoints.sha256_of(copy) != sha256:
        raise ParentError("changed", "%s changed while it was copied: try again" % source)


# code and data


def _place(parent: Run, child: Run, store: Store) -> None:
    """Put the parent's code and data, as the client sent them, in place for the child."""
    manifest = read_manifest(parent.manifest)
    check(manifest)
    with store.shared():
        missing = store.place(manifest, child)
        if missing:
            found = find_in_trees(parent, manifest, missing)
            lost = sorted(
                path
                for path, entry in manifest.items()
                if entry.get("sha256") in missing and entry["sha256"] not in found
            )
            if lost:
                words = "%s of run %s is not as it was sent, and this host has no other copy"
                raise ParentError("lost", words % (", ".join(lost[:3]), parent.id))
            with contextlib.closing(_Files([found[sha256][0] for sha256 in missing])) as stream:
                lost_files = [(sha256, found[sha256][1]) for sha256 in missing]
                store.receive(stream, lost_files, shared_modes_of(manifest))
            if store.place(manifest, child):
                raise ParentError("lost", "the store lost files that were just written to it: check its disk")


def find_in_trees(parent: Run, manifest: Manifest, missing: list[str]) -> dict[str, tuple[str, int]]:
    """Return path and size, by SHA-256, of the missing files that the parent's own trees still hold unchanged."""
    found: dict[str, tuple[str, int]] = {}
    for path, entry in manifest.items():
        sha256, source = entry.get("sha256"), os.path.join(parent.work, path)
        if sha256 in missing and sha256 not in found:
            with contextlib.suppress(OSError):
                if os.path.isfile(source) and checkpoints.sha256_of(source) == sha256:
                    found[str(sha256)] = (source, entry["size"])
    return found


class _Files:
    """The contents of files, one after the other, as a stream."""

    def __init__(self, paths: list[str]) -> None:
        self._left = list(reversed(paths))
        self._file: Any = None

    def read(self, size: int) -> bytes:
        while self._file is not None or self._left:
            if self._file is None:
                self._file = open(self._left.pop(), "rb")  # noqa: SIM115 - closed when it is read, or by `close`
            piece: bytes = self._file.read(size)
            if piece:
                return piece
            self.close()
        return b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
