"""A run's checkpoints, as far as the agent minds them: which are whole, which nobody may go on from, which may go.

The worker seals a checkpoint by its manifest, written last. The agent looks after them while no training runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from typing import Any, Callable, NamedTuple, Optional

from ..record.rundir import NO_ROOM, paths_in, read_json, sync_folder

MANIFEST = "manifest.json"
SENTINEL = "checkpoint-is-incomplete.txt"  # of transformers, which writes it and never reads it
_OURS = re.compile(r"step-\d+")
_TRAINERS = re.compile(r"checkpoint-\d+")
_HIDDEN = re.compile(r"\.(step-\d+)\.(new|old)")
_LEFT = re.compile(r"\.dropped-.*|\.without-scaler")
_REJECTED = ".rejected-"
LEAST_ROOM = 1 << 20


class GivenUpError(Exception):
    """Nobody waits for the answer any more."""


class Choice(NamedTuple):
    """The checkpoint to go on from, None for the beginning; and what is wrong with newer ones, by name."""

    step: Optional[int]
    path: Optional[str]
    damaged: dict[str, str]


def sealed(folder: str) -> list[tuple[int, str]]:
    """Return (step, path) of the checkpoints that the worker has sealed, the newest last."""
    found = []
    for path in paths_in(folder):
        if os.path.isdir(path) and not os.path.basename(path).startswith("."):
            step = _step(path)
            if isinstance(step, int):
                found.append((step, path))
    return sorted(found)


def _step(path: str) -> Any:
    return read_json(os.path.join(path, MANIFEST)).get("step")


def newest(folder: str) -> int | None:
    """Return the step of the newest sealed checkpoint, None where there is none."""
    found = sealed(folder)
    return found[-1][0] if found else None


def choose(folder: str, is_given_up: Callable[[], bool] = lambda: False) -> Choice:
    """Return the newest checkpoint of which every file is what its manifest says.

    That may take minutes: `is_given_up` is asked again and again. Raises GivenUpError.
    """
    damaged: dict[str, str] = {}
    for step, path in reversed(sealed(folder)):
        wrong = what_is_wrong(path, is_given_up)
        if wrong is None:
            return Choice(step, path, damaged)
        damaged[os.path.basename(path)] = wrong
    return Choice(None, None, damaged)


def what_is_wrong(path: str, is_given_up: Callable[[], bool] = lambda: False) -> str | None:
    """Say how a sealed checkpoint differs from its manifest, None where it does not; sizes first, they cost nothing."""
    files = read_json(os.path.join(path, MANIFEST)).get("files")
    if not isinstance(files, dict) or not all(isinstance(one, dict) for one in files.values()):
        return "its manifest names no files"
    try:
        for name, told in files.items():
            if os.stat(os.path.join(path, name)).st_size != told.get("size"):
                return "%s has another size" % name
        for name, told in files.items():
            if sha256_of(os.path.join(path, name), is_given_up) != told.get("sha256"):
                return "%s has other contents" % name
    except OSError as error:
        return "%s: %s" % (os.path.relpath(error.filename or path, path), error.strerror)
    return None


def sha256_of(path: str, is_given_up: Callable[[], bool] = lambda: False) -> str:
    """Return the SHA-256 of a file, in hex. Raises GivenUpError, and OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            if is_given_up():
                raise GivenUpError
    return digest.hexdigest()


def tidy(folder: str, is_all_sealed: bool) -> list[str]:
    """Remove what crashes have left half-done, and finish what was sealed; return the names of what was removed.

    `is_all_sealed`: the run's script seals every checkpoint of its Trainer, so that one without a manifest is torn.
    """
    removed = []
    for path in paths_in(folder):
        name = os.path.basename(path)
        hidden = _HIDDEN.fullmatch(name)
        if hidden:
            final = os.path.join(folder, hidden[1])
            if not os.path.exists(final) and what_is_wrong(path) is None:
                os.rename(path, final)  # a crash came between the seal and the name
                continue
        elif not _LEFT.fullmatch(name) and not _is_torn(path, is_all_sealed):
            continue
        if _remove(path):
            removed.append(name)
    if removed:
        sync_folder(folder)
    return removed


def _remove(path: str) -> bool:
    """Remove a folder, a file or a link; return whether that could be. What stays is in nobody's way."""
    try:
        if os.path.islink(path) or not os.path.isdir(path):
            os.unlink(path)
        else:
            shutil.rmtree(path)
    except OSError:
        return False
    return True


def _is_torn(path: str, is_all_sealed: bool) -> bool:
    name = os.path.basename(path)
    if not os.path.isdir(path) or isinstance(_step(path), int):
        return False
    if _TRAINERS.fullmatch(name):
        return is_all_sealed or os.path.exists(os.path.join(path, SENTINEL))
    return bool(_OURS.fullmatch(name))


def set_aside(folder: str, since: int) -> list[str]:
    """Move the checkpoints of a step and later into a hidden folder, where none is looked for; return their names.

    They are moved, not removed: a person may want to see what went wrong. Done twice, it does nothing the second time.
    Raises OSError if the disk refuses.
    """
    return _move_aside(folder, [path for step, path in sealed(folder) if step >= since])


def set_aside_damaged(folder: str, choice: Choice) -> None:
    """Move what is damaged out of the way: nobody is to take it for whole, and a new one may want its name."""
    _move_aside(folder, [os.path.join(folder, name) for name in choice.damaged])


def _move_aside(folder: str, bad: list[str]) -> list[str]:
    if bad:
        try:
            aside = tempfile.mkdtemp(prefix=_REJECTED, dir=folder)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            aside = None  # to rename needs no room
        for path in bad:
            name = os.path.basename(path)
            os.rename(path, os.path.join(aside, name) if aside else _free_name(folder, name))
        sync_folder(folder)
    return [os.path.basename(path) for path in bad]


def _free_name(folder: str, name: str) -> str:
    path = os.path.join(folder, _REJECTED + name)
    while os.path.lexists(path):
        path += "-"
    return path


def prune(folder: str) -> list[str]:
    """Make room: remove all checkpoints but the newest whole one and the best, and what was set aside; return their names.

    Where none is whole none is removed: a disk that cannot be read has not lost them yet.
    """
    newest_whole = choose(folder).path
    kept = [newest_whole, _best(folder)] if newest_whole else [path for _, path in sealed(folder)]
    removed = []
    for path in paths_in(folder):
        name = os.path.basename(path)
        is_checkpoint = bool(_OURS.fullmatch(name) or _TRAINERS.fullmatch(name))
        is_old = is_checkpoint and path not in kept and os.path.exists(os.path.join(path, MANIFEST))
        if (is_old or name.startswith(_REJECTED)) and _remove(path):
            removed.append(name)
    return removed


def _best(folder: str) -> str | None:
    """Return the sealed checkpoint of the lowest `eval_loss`, None where none has one."""
    rated = [(read_json(os.path.join(path, MANIFEST)).get("eval_loss"), path) for _, path in sealed(folder)]
    return min((pair for pair in rated if isinstance(pair[0], float)), default=(0.0, None))[1]


def is_short_of_room(folder: str) -> bool:
    """Whether a checkpoint as large as the newest might not fit on its disk."""
    found = sealed(folder)
    files = read_json(os.path.join(found[-1][1], MANIFEST)).get("files") if found else None
    sizes = [one.get("size") or 0 for one in files.values()] if isinstance(files, dict) else []
    return shutil.disk_usage(folder).free < max(LEAST_ROOM, 1.5 * sum(sizes))


def describe(choice: Choice) -> dict[str, Any] | None:
    """Return a choice as an attempt's record has it, None for the beginning."""
    return None if choice.path is None else {"step": choice.step, "path": choice.path}
