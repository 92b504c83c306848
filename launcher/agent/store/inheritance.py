"""A run's inheritance from its parent, the run that it continues: newest checkpoint, code and data.

The parent has ended on this host, and is never written to. A checkpoint's files get a second hard link in the
child, or are copied, so that either run can be removed without harm to the other.
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
from ..record.run_progress import progress_of
from ..record.rundir import TERMINAL, RecordFolder, Run
from ..record.safe_open import RunPath, link_regular
from . import checkpoints, script_checkpoint
from .hidden_names import HiddenNames
from .manifest import Manifest, check, read_manifest, shared_modes_of
from .store import Store

if TYPE_CHECKING:
    from ..record.run_records import ChangesRecord, ParentRecord

LET_GO_S = 5.0
"""How long an agent may take to release its locks after its run has ended."""
_CHANGES_OF = {"batch.micro": ("micro_batch", "accumulation")}
"""The remedies' changes that a key of a job overrides.

A key that is missing here overrides the change of the same name.
"""


class ParentError(Exception):
    """Raised for a run that cannot be continued; `code` is for programs, the text for people."""

    def __init__(self, code: str, message: str) -> None:
        """Keep the code and the message."""
        super().__init__(message)
        self.code = code


class DamagedCheckpoint(TypedDict):
    """A checkpoint that a run cannot resume from, by its name, and its defect."""

    checkpoint: str
    wrong: str


class InheritedCheckpoint(TypedDict):
    """A run's inheritance from its parent, and the newer checkpoints that were rejected."""

    parent: ParentRecord
    changes: ChangesRecord
    passed_over: List[DamagedCheckpoint]


def inherit(
    parent: Run, child: Run, prepared: RecordFolder, store: Store, asked: Collection[str]
) -> InheritedCheckpoint:
    """Give a new run its inheritance from its parent; return it with the rejected checkpoints.

    `prepared` is the child's first folder. `asked` are the keys of its plan that the user set; the changes by
    remedies to other keys stay in force. The code is placed last: a run without it has never begun. Raises
    ParentError.
    """
    check_ended(parent)
    if not resumes(parent):
        return _inherit_own(parent, child, prepared, store, asked)
    if "command" in asked:
        words = "the script of run %s continues from launcher's checkpoint: a resumed run keeps its command"
        raise ParentError("command", words % parent.id)
    in_force = remedy.in_force(parent.newest_records())
    sealed = _unspoilt(parent, in_force)
    step, path, passed_over = _newest_whole(parent, sealed)
    steps = child.read_plan().get("steps")
    # A failure after the last step is in what follows the training: the next run does only that.
    goes_on_after = "steps" not in asked and run_state.state_of(parent)["state"] == "failed"
    if steps is not None and (steps < step or (steps == step and not goes_on_after)):
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


def _inherit_own(
    parent: Run, child: Run, prepared: RecordFolder, store: Store, asked: Collection[str]
) -> InheritedCheckpoint:
    """Give a new run the files that its parent's script wrote, for a script that does not use the worker."""
    plan = parent.read_plan()
    step = progress_of(parent, is_live=False).step or 0
    finds_it = "command" in asked or plan.get("restart") is True
    bad = script_checkpoint.bad_from(parent)
    own = script_checkpoint.newest(parent, step, bad)
    if own is None and finds_it:
        own = script_checkpoint.newest_file(parent, step)
    if own is None:
        words = "the script of run %s never called worker.resume_from(), and left no checkpoint of its own in its folder (links are not followed)"
        if bad is not None:
            words = "the script of run %%s left no checkpoint of its own from before step %d, from which on its weights are bad" % max(1, bad)  # fmt: skip
        raise ParentError("cannot-resume", words % parent.id)
    shown = HiddenNames(parent).shown_folder("code/" + own.path).partition("/")[2]
    if not finds_it and not (own.is_trainers and plan.get("inject")):
        words = "only the script of run %s can continue from %s, by an option of its own"
        raise ParentError("own-checkpoint", words % (parent.id, shown))
    origin: ParentRecord = {"run": parent.id, "checkpoint": shown, "step": own.step}
    origin["is_trainers"] = own.is_trainers
    child.write_prepared(prepared, {**child.prepared(), "parent": origin, "changes": {}})
    _place(parent, child, store)
    script_checkpoint.hand_on(parent, child, bad)
    return {"parent": origin, "changes": {}, "passed_over": []}


# whether the parent can be continued


def check_ended(parent: Run) -> None:
    """Raise ParentError for a run that has not ended, or that left processes running."""
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
            raise ParentError("held", "run %s could not be ended completely: %s" % (parent.id, left))


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
    """Return the path of the checkpoint to continue a run from, and the newer ones that were rejected.

    Reads every file of the checkpoint. Raises ParentError.
    """
    in_force = remedy.in_force(run.newest_records())
    _, path, passed_over = _newest_whole(run, _unspoilt(run, in_force))
    return path, passed_over


def _unspoilt(run: Run, in_force: remedy.CurrentChanges) -> list[tuple[int, str]]:
    """Return (step, path) of the sealed checkpoints from before the failure. Raises ParentError if none."""
    # An agent that died before it handled a failure has not set its checkpoints aside.
    bound = in_force.failure.since if in_force.failure is not None else None
    sealed = checkpoints.sealed(run.checkpoints)
    sealed = [(step, path) for step, path in sealed if bound is None or step < bound]
    if not sealed:
        raise ParentError("no-checkpoint", "run %s left no checkpoint to continue from" % run.id)
    return sealed


def _newest_whole(run: Run, sealed: list[tuple[int, str]]) -> tuple[int, str, list[DamagedCheckpoint]]:
    """Return step and path of the newest intact checkpoint, and the newer rejected ones with the reasons."""
    passed_over: list[DamagedCheckpoint] = []
    late = checkpoints.late(run)
    for step, path in reversed(sealed):
        wrong = late.get(os.path.basename(path)) or _what_leads_away(run, path) or what_is_wrong(path)
        if wrong is None:
            return step, path, passed_over
        passed_over.append({"checkpoint": os.path.basename(path), "wrong": wrong})
    words = ", ".join("%s (%s)" % (damaged["checkpoint"], damaged["wrong"]) for damaged in passed_over[:5])
    raise ParentError("no-checkpoint", "run %s left no whole checkpoint: %s" % (run.id, words))


# a checkpoint


def _what_leads_away(run: Run, path: str) -> str | None:
    """Return which file of a checkpoint is invisible to the job's container, in words; None if it sees all.

    For example, a link may lead to another run.
    """
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
    """Return a sealed checkpoint's defect, or why it cannot be taken over; None if it is intact."""
    files = read_json(os.path.join(path, checkpoints.MANIFEST)).get("files")
    for name in files if isinstance(files, dict) else ():
        if leads_out(name):
            return "its manifest names %s" % name
    return checkpoints.what_is_wrong(path)


def leads_out(name: str) -> bool:
    """Whether a file name in a manifest is not a plain relative path below the checkpoint's folder."""
    return os.path.isabs(name) or os.path.normpath(name) != name or name.split("/", maxsplit=1)[0] == ".."


def take_over(path: str, target: str, *, links: bool) -> None:
    """Copy a checkpoint: by hard links if `links` is set and the file system can, else by copies of files.

    It appears in one step. Raises OSError if the disk refuses.
    """
    top = path if isinstance(path, RunPath) else RunPath(path, path)
    files = read_json(os.path.join(path, checkpoints.MANIFEST))["files"]

    def put(name: str, entry: Mapping[str, Any], copy: str) -> None:
        source = top.below(name)
        if not (links and link_regular(source, copy)):
            copy_checked(source, copy, entry["sha256"])

    manifest = functools.partial(copy_checked, os.path.join(path, checkpoints.MANIFEST))
    publish(target, files, put, manifest)


def publish(
    target: str,
    files: Mapping[str, Mapping[str, Any]],
    put: Callable[[str, Mapping[str, Any], str], None],
    put_manifest: Callable[[str], None],
) -> None:
    """Make a checkpoint from a manifest's files, in one step and durably. Raises OSError if the disk refuses.

    `put` makes the file of a name and entry at a path. `put_manifest` makes the manifest, last.
    """
    folder = os.path.dirname(target)
    hidden = os.path.join(folder, ".%s.new" % os.path.basename(target))
    remove_folder(hidden)  # left by a failed try
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


def copy_checked(source: str, copy: str, sha256: str | None = None) -> None:
    """Copy a file durably. Raises ParentError if the copy does not have this SHA-256."""
    shutil.copyfile(source, copy)
    with open(copy, "rb") as file:
        os.fsync(file.fileno())
    if sha256 is not None and checkpoints.sha256_of(copy) != sha256:
        raise ParentError("changed", "%s changed while it was copied: try again" % source)


# code and data


def _place(parent: Run, child: Run, store: Store) -> None:
    """Place the parent's code and data for the child, as the client sent them."""
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
    """Return path and size, by SHA-256, of the missing files that the parent's trees still hold unchanged."""
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
