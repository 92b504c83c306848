"""What a run takes over from the one that it continues: the newest whole checkpoint, and code and data as they were sent.

The parent has ended, on this host. Nothing of it is written to: a checkpoint's files get a second name in the child, or are
copied, so that either run may be removed and the other keeps what it has.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from typing import Any, Collection

from ..diagnosis import remedy
from ..fate import run_state
from ..record import strict_json
from ..record.rundir import TERMINAL, Folder, Run, is_locked, read_json, sync_folder, write_durably
from . import checkpoints
from .manifest import Manifest, check
from .store import Store

LET_GO_S = 5.0
"""How long the agent of a run that has just ended may take to let its locks go."""
_CHANGES_OF = {"batch.micro": ("micro_batch", "accumulation")}
"""The changes by remedies that a key of a job overrides; another key overrides the one of its name."""


class ParentError(Exception):
    """A run that cannot be continued; its code is a word for programs, its text for people."""

    def __init__(self, code: str, message: str) -> None:
        """Hold both."""
        super().__init__(message)
        self.code = code


def inherit(
    parent: Run, child: Run, prepared: Folder, store: Store, asked: Collection[str]
) -> dict[str, Any]:
    """Give a run that is being prepared what its parent left; return what that is, and what was passed over.

    `prepared` is the child's first folder. `asked` are the keys of its plan that a person has set: what remedies made of
    the others holds on. The code comes last: a run without it never began. Raises ParentError.
    """
    check_ended(parent)
    folders = [parent.folder(number) for number in parent.numbers()]
    in_force = remedy.in_force([(read_json(one.attempt), one.read_state()) for one in folders])
    bound = (in_force.failure or {}).get(
        "since"
    )  # of a failure that no attempt answered, which set nothing aside
    sealed = checkpoints.sealed(parent.checkpoints)
    sealed = [(step, path) for step, path in sealed if bound is None or step < bound]
    if not sealed:
        raise ParentError("no-checkpoint", "run %s left no checkpoint to go on from" % parent.id)
    if not _resumes(parent):
        words = "the script of run %s never asked worker.resume_from(): it would begin with step 1 again"
        raise ParentError("cannot-resume", words % parent.id)
    step, path, passed_over = _newest_whole(parent, sealed)
    steps = read_json(child.plan).get("steps")
    if steps is not None and steps <= step:
        words = "steps = %d is not above %d, the step of the checkpoint that run %s left"
        raise ParentError("steps", words % (steps, step, parent.id))
    name = os.path.basename(path)
    # A script that saves into one folder again and again would write into the parent's files.
    is_written_once = re.search(r"(?<![0-9])0*%d\Z" % step, name) is not None
    take_over(path, os.path.join(child.checkpoints, name), links=is_written_once)
    told = {"run": parent.id, "checkpoint": name, "step": step}
    set_anew = {name for key in asked for name in _CHANGES_OF.get(key, (key,))}
    changes = {name: value for name, value in in_force.changes.items() if name not in set_anew}
    record = dict(read_json(prepared.attempt), parent=told, changes=changes)
    write_durably(prepared.attempt, strict_json.encode(record) + "\n")
    _place(parent, child, store)
    return {"parent": told, "changes": changes, "passed_over": passed_over}


# whether there is something to go on from


def check_ended(parent: Run) -> None:
    """Raise ParentError for a run that has not ended, or of which something is left."""
    state = run_state.state_of(parent)["state"]
    if state not in TERMINAL:
        raise ParentError("not-ended", "run %s is %s" % (parent.id, state))
    deadline = time.monotonic() + LET_GO_S
    while _is_held(parent):
        if time.monotonic() >= deadline:
            raise ParentError("held", "run %s is %s, but its agent is still there" % (parent.id, state))
        time.sleep(0.02)
    if state == "cancel-incomplete":
        left = run_state.fate_of(parent).left(parent)
        if left:
            raise ParentError("held", "run %s could not be ended whole: %s" % (parent.id, left))


def _is_held(run: Run) -> bool:
    last = run.last()
    return is_locked(run.keeper_lock) or (last is not None and last.is_locked())


def _resumes(run: Run) -> bool:
    """Whether the script took the checkpoint to go on from, and was not told another by its own words."""
    told: set[str] = set()
    for number in run.numbers():
        told.update(run.folder(number).read_state().get("consumed") or [])
    return "resume" in told and "held resume" not in told


def _newest_whole(run: Run, sealed: list[tuple[int, str]]) -> tuple[int, str, list[dict[str, Any]]]:
    """Return step and path of the newest whole checkpoint, and which newer ones were passed over, and why."""
    passed_over: list[dict[str, Any]] = []
    for step, path in reversed(sealed):
        wrong = what_is_wrong(path)
        if wrong is None:
            return step, path, passed_over
        passed_over.append({"checkpoint": os.path.basename(path), "wrong": wrong})
    words = ", ".join("%s (%s)" % (one["checkpoint"], one["wrong"]) for one in passed_over[:5])
    raise ParentError("no-checkpoint", "run %s left no whole checkpoint: %s" % (run.id, words))


# a checkpoint


def what_is_wrong(path: str) -> str | None:
    """Say how a sealed checkpoint differs from its manifest, or why it is none to take over; None where it is whole."""
    files = read_json(os.path.join(path, checkpoints.MANIFEST)).get("files")
    for name in files if isinstance(files, dict) else ():
        if os.path.isabs(name) or os.path.normpath(name) != name or name.split("/")[0] == "..":
            return "its manifest names %s" % name
    return checkpoints.what_is_wrong(path)


def take_over(path: str, target: str, *, links: bool) -> None:
    """Give a whole checkpoint a second place: with `links` its files a second name where the file system can, else copies.

    It appears whole. Raises OSError if the disk refuses.
    """
    folder = os.path.dirname(target)
    hidden = os.path.join(folder, ".%s.new" % os.path.basename(target))
    os.makedirs(hidden)
    files = read_json(os.path.join(path, checkpoints.MANIFEST))["files"]
    inner = {hidden}
    for name, entry in sorted(files.items()):
        place = os.path.join(hidden, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        inner.add(os.path.dirname(place))
        source = os.path.realpath(os.path.join(path, name))  # a link may lead elsewhere from the new place
        if not (links and _is_linked(source, place)):
            _copy(source, place, entry["sha256"])
    _copy(os.path.join(path, checkpoints.MANIFEST), os.path.join(hidden, checkpoints.MANIFEST))
    for one in inner:
        sync_folder(one)
    os.rename(hidden, target)
    sync_folder(folder)


def _is_linked(source: str, place: str) -> bool:
    """Give a file a second name; whether that could be: not on another file system, nor on one without hard links."""
    try:
        os.link(source, place)
    except OSError:
        return False
    return True


def _copy(source: str, place: str, sha256: str | None = None) -> None:
    shutil.copyfile(source, place)
    with open(place, "rb") as file:
        os.fsync(file.fileno())
    if sha256 is not None and checkpoints.sha256_of(place) != sha256:
        raise ParentError("changed", "%s changed while it was copied: try again" % source)


# code and data


def _place(parent: Run, child: Run, store: Store) -> None:
    """Put the parent's code and data, as they were sent to it, in place for the child."""
    manifest = read_json(parent.manifest)
    check(manifest)
    with store.shared():
        missing = store.place(manifest, child)
        if missing:
            found = _found(parent, manifest, missing)
            lost = sorted(
                path
                for path, entry in manifest.items()
                if entry.get("sha256") in missing and entry["sha256"] not in found
            )
            if lost:
                words = "%s of run %s is not as it was sent, and nothing else here holds it"
                raise ParentError("lost", words % (", ".join(lost[:3]), parent.id))
            with contextlib.closing(_Files([found[one][0] for one in missing])) as stream:
                store.receive(stream, [(one, found[one][1]) for one in missing])
            if store.place(manifest, child):
                raise ParentError("lost", "the store cannot keep what it is given; is its disk sound?")


def _found(parent: Run, manifest: Manifest, missing: list[str]) -> dict[str, tuple[str, int]]:
    """Return, by SHA-256, path and size of what the parent's own trees still hold as it was sent."""
    found: dict[str, tuple[str, int]] = {}
    for path, entry in manifest.items():
        sha256, place = entry.get("sha256"), os.path.join(parent.work, path)
        if sha256 in missing and sha256 not in found:
            with contextlib.suppress(OSError):
                if os.path.isfile(place) and checkpoints.sha256_of(place) == sha256:
                    found[str(sha256)] = (place, entry["size"])
    return found


class _Files:
    """Files one behind the other, as a stream."""

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
