"""A run's checkpoints: find the complete ones, reject damaged and late ones, remove old ones.

The worker seals a checkpoint by writing its manifest last. The agent works on checkpoints only while no
training runs. It removes only checkpoints that the worker made. An unsealed checkpoint by a script or its
Trainer is at most moved aside.

A late checkpoint is one by an agent that the run has left behind. An agent may be taken for dead because its
machine is frozen or unreachable. It may then seal one more checkpoint before it sees that the run continues
without it. No attempt resumes from such a checkpoint. No clock decides: each folder records the checkpoints
that were sealed before it began, so any other checkpoint sealed by an earlier folder is late.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import itertools
import os
import re
import shutil
import stat
import tempfile
import types
from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Optional

from ..record.files import MAX_BYTES, NO_ROOM, parse_json, paths_in, read_json, sync_folder
from ..record.rundir import Run
from ..record.safe_open import open_regular, read_regular

if TYPE_CHECKING:
    from ..record.run_records import CheckpointRecord


MANIFEST = "manifest.json"
SENTINEL = "checkpoint-is-incomplete.txt"  # transformers writes it and never reads it
_OURS = re.compile(r"step-\d+")
_TRAINERS = re.compile(r"checkpoint-\d+")
_HIDDEN = re.compile(r"\.(step-\d+)\.(new|old)")
_LEFT = re.compile(r"\.dropped-.*|\.without-scaler")
_REJECTED = ".rejected-"
_ASIDE = ".aside-"
MIN_ROOM = 1 << 20
MAX_FILES = 100_000


class CheckAbortedError(Exception):
    """Raised when a check is interrupted because its result is no longer needed."""


class TidyResult(NamedTuple):
    """The names of removed files and folders, and the new relative paths of those moved aside, by name."""

    removed: list[str]
    aside: dict[str, str]


class ChosenCheckpoint(NamedTuple):
    """The checkpoint to resume from, and the defects of newer ones by name.

    `step` and `path` are None for a start without a checkpoint.
    """

    step: Optional[int]
    path: Optional[str]
    damaged: dict[str, str]


def sealed(folder: str) -> list[tuple[int, str]]:
    """Return (step, path) of the checkpoints that the worker has sealed, newest last."""
    checkpoints = []
    for path in paths_in(folder):
        if os.path.isdir(path) and not os.path.basename(path).startswith("."):
            step = _step(path)
            if isinstance(step, int):
                checkpoints.append((step, path))
    return sorted(checkpoints)


def _step(path: str) -> Any:
    return read_json(os.path.join(path, MANIFEST)).get("step")


def newest(folder: str) -> int | None:
    """Return the step of the newest sealed checkpoint, None without one.

    A sealed checkpoint that a crash left without its final name counts too: see `tidy`.
    """
    steps = [step for step, _ in sealed(folder)]
    for path in paths_in(folder):
        hidden = _HIDDEN.fullmatch(os.path.basename(path))
        if hidden and isinstance(_step(path), int) and not os.path.exists(os.path.join(folder, hidden[1])):
            steps.append(_step(path))
    return max(steps, default=None)


def choose(
    folder: str,
    is_given_up: Callable[[], bool] = lambda: False,
    late: Mapping[str, str] = types.MappingProxyType({}),
) -> ChosenCheckpoint:
    """Return the newest checkpoint that is not late and whose files all match its manifest.

    This may take minutes. `is_given_up` is called between blocks. `late` has defects by name; see
    the module's text. Raises CheckAbortedError.
    """
    damaged: dict[str, str] = dict(late)
    for step, path in reversed(sealed(folder)):
        if os.path.basename(path) in late:
            continue
        defect = what_is_wrong(path, is_given_up)
        if defect is None:
            return ChosenCheckpoint(step, path, damaged)
        damaged[os.path.basename(path)] = defect
    return ChosenCheckpoint(None, None, damaged)


def what_is_wrong(path: str, is_given_up: Callable[[], bool] = lambda: False) -> str | None:
    """Return how a sealed checkpoint differs from its manifest, None if intact. Compares sizes first."""
    files = read_json(os.path.join(path, MANIFEST)).get("files")
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        return "its manifest names no files"
    try:
        for name, entry in files.items():
            status = os.stat(os.path.join(path, name))
            if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
                return "%s is not a regular file" % name
            if status.st_size != entry.get("size"):
                return "%s has another size" % name
        for name, entry in files.items():
            if sha256_of(os.path.join(path, name), is_given_up) != entry.get("sha256"):
                return "%s has other contents" % name
    except OSError as error:
        return "%s: %s" % (os.path.relpath(error.filename or path, path), error.strerror)
    except ValueError:
        return "its manifest has a name that no file can have"
    return None


def sha256_of(path: str, is_given_up: Callable[[], bool] = lambda: False) -> str:
    """Return the SHA-256 of a file, in hex. Raises CheckAbortedError, and OSError."""
    digest = hashlib.sha256()
    with open(open_regular(path, os.O_RDONLY), "rb") as file:  # does not block on a pipe
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            if is_given_up():
                raise CheckAbortedError
    return digest.hexdigest()


def tidy(folder: str, is_all_sealed: bool) -> TidyResult:
    """Clean up after crashes: finish or remove the worker's incomplete checkpoints, and move others aside.

    `is_all_sealed` says that the script seals every checkpoint of its Trainer, so that one without a manifest
    is damaged. A `step-N` without a manifest is damaged if the worker has sealed others. Otherwise such
    folders belong to the script.
    """
    removed, torn = [], []
    has_sealed = bool(sealed(folder))
    for path in paths_in(folder):
        name = os.path.basename(path)
        hidden = _HIDDEN.fullmatch(name)
        if hidden:
            final = os.path.join(folder, hidden[1])
            if not os.path.exists(final) and what_is_wrong(path) is None:
                os.rename(path, final)  # the crash came between the seal and the name
                continue
        elif not _LEFT.fullmatch(name):
            torn += [path] if _is_torn(path, is_all_sealed, has_sealed) else []
            continue
        if _remove(path):
            removed.append(name)
    if removed:
        sync_folder(folder)
    return TidyResult(removed, _move_aside(folder, torn, _ASIDE))


def _remove(path: str) -> bool:
    """Remove a folder, a file or a link; return whether it worked. A leftover does no harm."""
    try:
        if os.path.islink(path) or not os.path.isdir(path):
            os.unlink(path)
        else:
            shutil.rmtree(path)
    except OSError:
        return False
    return True


def _is_torn(path: str, is_all_sealed: bool, has_sealed: bool) -> bool:
    name = os.path.basename(path)
    if not os.path.isdir(path) or isinstance(_step(path), int):
        return False
    if _TRAINERS.fullmatch(name):
        return is_all_sealed or os.path.exists(os.path.join(path, SENTINEL))
    return has_sealed and _OURS.fullmatch(name) is not None


def set_aside(folder: str, since: int) -> list[str]:
    """Move the checkpoints of this and later steps into a hidden folder; return their names.

    They are not removed, because the user may want to inspect them. A second call does nothing. Raises
    OSError.
    """
    return list(_move_aside(folder, [path for step, path in sealed(folder) if step >= since], _REJECTED))


def set_aside_damaged(folder: str, chosen: ChosenCheckpoint) -> None:
    """Move damaged checkpoints away, so that no script loads them and new ones can have their names."""
    damaged = [os.path.join(folder, name) for name in chosen.damaged]
    ours = [path for path in damaged if _is_ours(path)]
    _move_aside(folder, ours, _REJECTED)
    _move_aside(folder, [path for path in damaged if path not in ours], _ASIDE)


def _is_ours(path: str) -> bool:
    """Whether the worker sealed a checkpoint.

    The manifest of a script's checkpoint may have a step, but it lacks the worker's list of files.
    """
    return isinstance(_step(path), int) and isinstance(
        read_json(os.path.join(path, MANIFEST)).get("files"), dict
    )


def _move_aside(folder: str, paths: list[str], prefix: str) -> dict[str, str]:
    """Move checkpoints into a new hidden folder; return their new relative paths by name. Raises OSError."""
    moved: dict[str, str] = {}
    if not paths:
        return moved
    try:
        aside = tempfile.mkdtemp(prefix=prefix, dir=folder)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        aside = None  # renaming needs no space
    for path in paths:
        name = os.path.basename(path)
        target = os.path.join(aside, name) if aside else _free_name(folder, prefix + name)
        os.rename(path, target)
        moved[name] = os.path.relpath(target, folder)
    sync_folder(folder)
    return moved


def _free_name(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    while os.path.lexists(path):
        path += "-"
    return path


def prune(folder: str, late: Mapping[str, str] = types.MappingProxyType({})) -> list[str]:
    """Free disk space: remove rejected checkpoints, and all sealed ones but the newest complete and the best.

    Returns the removed names. Checkpoints by a script that the worker never sealed stay. If no checkpoint is
    complete, no sealed one is removed: the disk may be readable later.
    """
    newest_complete = choose(folder, late=late).path
    kept = (
        [newest_complete, _best(sealed(folder))] if newest_complete else [path for _, path in sealed(folder)]
    )
    removed = []
    for path in paths_in(folder):
        name = os.path.basename(path)
        is_checkpoint = bool(_OURS.fullmatch(name) or _TRAINERS.fullmatch(name))
        is_old = is_checkpoint and path not in kept and _is_ours(path)
        if (is_old or name.startswith(_REJECTED)) and _remove(path):
            removed.append(name)
    return removed


def pick(candidates: list[tuple[int, str]], which: str) -> str | None:
    """Return the `last`, the `best` or the numbered checkpoint; None if it is missing.

    The newest candidate must come last.
    """
    if which == "best":
        return _best(candidates)
    chosen = [path for step, path in candidates if which in ("last", str(step))]
    return chosen[-1] if chosen else None


def read_manifest(path: str) -> tuple[bytes, list[str]]:
    """Return the manifest of a sealed checkpoint and the files that it names. Raises OSError."""
    data = read_regular(os.path.join(path, MANIFEST), MAX_BYTES)
    files = parse_json(data.decode("utf-8", "replace")).get("files")
    return data, list(files) if isinstance(files, dict) else []


def _best(candidates: list[tuple[int, str]]) -> str | None:
    """Return the checkpoint with the lowest `eval_loss`, None if none has one."""
    rated = [(read_json(os.path.join(path, MANIFEST)).get("eval_loss"), path) for _, path in candidates]
    return min((pair for pair in rated if isinstance(pair[0], float)), default=(0.0, None))[1]


MAX_DISK_SHARE = 0.9
"""The largest share of a disk that an estimate of a checkpoint's size may take.

A run would wait in vain for more.
"""


class Room(NamedTuple):
    """The free bytes on the checkpoints' disk, and the bytes that the next checkpoint needs if known."""

    free: int
    needed: int

    @property
    def is_short(self) -> bool:
        """Whether there may be too little space."""
        return self.free < max(MIN_ROOM, 1.5 * self.needed)

    @property
    def words(self) -> str:
        """The two numbers as text, e.g. `3.6 MB free, 44 MB needed for the next checkpoint`."""
        return "%s free, %s needed for the next checkpoint" % (_in_words(self.free), _in_words(self.needed))


def room(folder: str, unsaved: Optional[int] = None) -> Room:
    """Return the free space for the next checkpoint, and its need: a tenth more than the newest took.

    `unsaved` is the number of bytes that a failed write wrote before its files were removed. The whole
    checkpoint is larger, so if `unsaved` exceeds the estimate, twice that number is taken as the need. An
    unsealed checkpoint that still exists will be written over, so its size counts as an estimate too.
    """
    checkpoints = sealed(folder)
    files = read_json(os.path.join(checkpoints[-1][1], MANIFEST)).get("files") if checkpoints else None
    entries = [entry.get("size") for entry in files.values()] if isinstance(files, dict) else []
    whole = sum(size for size in entries if isinstance(size, int))
    paths = [path for path in paths_in(folder) if not os.path.basename(path).startswith(".")]
    unsealed = {*paths} - {path for _, path in checkpoints}
    needed = max(whole + whole // 10, *map(_size, unsealed), 0)
    disk = shutil.disk_usage(folder)
    if unsaved is not None and unsaved > needed:
        needed = max(min(2 * unsaved, int(MAX_DISK_SHARE * disk.total)), unsaved)
    return Room(disk.free, needed or MIN_ROOM)


def _size(path: str) -> int:
    """Return the size in bytes of a file, or of the first MAX_FILES files in a folder."""
    found = itertools.chain.from_iterable(
        (os.path.join(folder, name) for name in names) for folder, _, names in os.walk(path)
    )
    total = 0
    for one in (path, *itertools.islice(found, MAX_FILES)):
        with contextlib.suppress(OSError):  # a script may remove its files at any time
            status = os.lstat(one)
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def _in_words(size: int) -> str:
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return "%.3g %s" % (size / least, unit)
    return "%d bytes" % size


def describe(chosen: ChosenCheckpoint) -> CheckpointRecord | None:
    """Return the checkpoint as in attempt.json, None for a start without one."""
    return None if chosen.path is None else {"step": chosen.step, "path": chosen.path}


def sealed_now(run: Run) -> List[str]:
    """Return the SHA-256 of each sealed checkpoint's manifest, including one without its final name yet."""
    manifests = (_manifest(path) for path in paths_in(run.checkpoints))
    return [_digest(manifest) for manifest in manifests if manifest is not None]


def late(run: Run) -> Dict[str, str]:
    """Return the late checkpoints of a run by name, each with the reason in words."""
    found: Dict[str, str] = {}
    numbers = run.numbers()
    begun: Dict[int, Optional[FrozenSet[str]]] = {}
    for _, path in sealed(run.checkpoints):
        manifest = _manifest(path) or b""
        record = parse_json(manifest.decode("utf-8", "replace"))
        sealer = record.get("folder")
        if record.get("run") != run.id or not isinstance(sealer, int):
            continue
        for number in numbers[bisect.bisect_right(numbers, sealer) :]:
            if number not in begun:
                begun[number] = run.folder(number).read_sealed()
            sealed_at_begin = begun[number]
            if sealed_at_begin is not None:
                if _digest(manifest) not in sealed_at_begin:
                    words = "attempt folder %04d sealed it after %04d had begun" % (sealer, number)
                    found[os.path.basename(path)] = words
                break
    return found


def _manifest(checkpoint: str) -> Optional[bytes]:
    """Return the bytes of a checkpoint's manifest; None if missing or the agent cannot have written it."""
    try:
        return read_regular(os.path.join(checkpoint, MANIFEST), MAX_BYTES)
    except OSError:
        return None


def _digest(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()
