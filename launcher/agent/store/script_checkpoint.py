"""The checkpoints that a script saves itself, in its own folder and format, without the worker.

Only the script can load one. A run that continues from it gets a copy of all files that the script wrote. The
start-up hook passes a checkpoint by transformers' Trainer to the next Trainer. For any other, the user gives
the script's own option, or the job says `restart` because the script finds its checkpoint itself.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from typing import TYPE_CHECKING, Iterator, List, NamedTuple, Optional, Set, Tuple

from ..diagnosis.remedy import AttemptFailure, read_failure
from ..record.files import sync_file_system
from ..record.rundir import Run
from .checkpoints import SENTINEL
from .hidden_names import HiddenNames
from .manifest import code_of, read_manifest
from .outputs import BESIDE, CACHES, MAX_FILES, OutputDigests, OutputScan, is_utf8, open_output

if TYPE_CHECKING:
    from ..record.run_records import PlanRecord

TRAINER_STATE = "trainer_state.json"
"""The file that transformers' Trainer writes last into a checkpoint."""
_FOLDER = re.compile(
    r"(?:checkpoint|ckpt|(?:global_?)?step|iter(?:ation)?|epoch)[-_=]?(?:\d{1,12}|best|last|latest)|.*[-_=]step[-_=]?\d{1,12}"
)
_FILE = re.compile(
    r".*\.ckpt|(?:.*[-_.=])?(?:checkpoint|ckpt|snapshot|last|latest|epoch|step|iter|model(?=[-_]?\d))(?:[-_.=]?\w+)*\.(?:pth?|tar|safetensors)"
)
"""Names of checkpoints: `checkpoint-20` by Trainer, `epoch_0` by accelerate, `epoch=1-step=20.ckpt` by Lightning, `ckpt.pt`."""
_STEP = re.compile(r"(?:checkpoint|ckpt|step|iter(?:ation)?|model)[-_=]?(\d{1,12})(?!\d)")


class OwnCheckpoint(NamedTuple):
    """A script's own checkpoint: its path below the code, its step, and whether a Trainer saved it.

    If its name has no step, `step` is the run's last one.
    """

    path: str
    step: int
    is_trainers: bool


def first_bad(failure: Optional[AttemptFailure]) -> Optional[int]:
    """Return the step from which an attempt's checkpoints are bad; None if all may be used.

    A loss belongs to the weights before its step's update, so the first bad one may come from the update before it.
    """
    return None if failure is None or failure.since is None else max(0, failure.since - 1)


def bad_from(run: Run) -> Optional[int]:
    """Return `first_bad` of the last attempt, by its record."""
    for folder in run.newest():
        state = folder.read_state()
        failure = read_failure(state.get("failure"))
        if failure is not None or state.get("began"):
            return first_bad(failure)
    return None


def newest(run: Run, step: int, bad: Optional[int] = None) -> Optional[OwnCheckpoint]:
    """Return the checkpoint that the script saved last, a Trainer's before any other; None without one.

    Checkpoints that were sent with the code do not count, nor one that a Trainer was still writing. `step` is the
    run's last step, for a checkpoint whose name has none. With `bad`, only those count that were saved before that
    step by their names.
    """
    sent = [*code_of(read_manifest(run.manifest))]
    found: List[Tuple[bool, int, int, str]] = []
    trainers: Set[str] = set()
    """The folders in which a Trainer has saved whole checkpoints."""
    for path in _named(run):
        if any(one == path or one.startswith(path + "/") for one in sent):
            continue
        folder = run.code.below(path)
        if os.path.exists(folder.below(SENTINEL)) or (os.path.isdir(folder) and not os.listdir(folder)):
            continue
        number = _STEP.search(os.path.basename(path))
        if bad is not None and (number is None or int(number[1]) >= bad):
            continue
        state = folder.below(TRAINER_STATE)
        is_trainers = os.path.exists(state)
        if is_trainers:
            trainers.add(os.path.dirname(path))
        saved_ns = os.lstat(state if is_trainers else folder).st_mtime_ns
        found.append((is_trainers, saved_ns, int(number[1]) if number else step, path))
    whole = [one for one in found if one[0] or os.path.dirname(one[3]) not in trainers]
    if not whole:
        return None
    is_trainers, _, saved, path = max(whole)
    return OwnCheckpoint(path, saved, is_trainers)


def for_the_hook(run: Run, plan: PlanRecord, *, is_asked: bool) -> Optional[OwnCheckpoint]:
    """Return the checkpoint that the start-up hook passes to the script's own Trainer; None without one.

    It does so if the user asked for it by resuming a run, or if the job says that the script may start again.
    """
    if plan.get("inject") is not True or not (is_asked or plan.get("restart") is True):
        return None
    own = newest(run, 0, bad_from(run))
    return own if own is not None and own.is_trainers else None


def _named(run: Run) -> Iterator[str]:
    """Yield the path below the code of each file and folder that has the name of a checkpoint."""
    seen = 0
    for folder, folders, files in os.walk(run.code):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            form = _FOLDER if name in folders else _FILE
            if form.fullmatch(name) and not os.path.islink(path) and is_utf8(path):
                yield os.path.relpath(path, run.code)
        folders[:] = [name for name in folders if name not in CACHES and not _FOLDER.fullmatch(name)]
        seen += len(files)
        if seen > MAX_FILES:
            return


def newest_file(run: Run, step: int) -> Optional[OwnCheckpoint]:
    """Return the file that the script wrote last, for a script with other names; `step` is the run's last step."""
    files = [
        found
        for found in OutputScan(run, OutputDigests(run), matches_all=True).outputs()
        if _travels(found.path)
    ]
    if not files:
        return None
    return OwnCheckpoint(
        max(files, key=lambda one: one.mark[1]).path.partition("/")[2], step, is_trainers=False
    )


def hand_on(run: Run, child: Run, bad: Optional[int] = None) -> None:
    """Copy the files that a run's script wrote or changed into the next run, durably, with their times.

    With `bad`, checkpoints stay behind whose names have that step or a later one.

    They are copies, because a script may write over any of them. Relative links in the code are made again. The
    times tell scripts, and `newest`, which file is the latest. Raises OSError for a file that cannot be read or
    written.
    """
    scan = OutputScan(run, OutputDigests(run), matches_all=True)
    names, part = HiddenNames(run), child.work.below(".handed-on")
    for found in scan.outputs():
        if not _travels(found.path):
            continue
        top, _, rest = names.real(found.path).partition("/")
        if bad is not None and any(_is_bad(name, bad) for name in rest.split("/")):
            continue
        copy = (child.work if top == BESIDE else child.work.below(top)).below(rest)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        descriptor, status = open_output(run, found.path)
        with open(descriptor, "rb") as file, open(part, "wb") as target:
            shutil.copyfileobj(file, target, 1 << 20)
            os.fchmod(target.fileno(), status.st_mode & 0o777)
        os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.replace(part, copy)  # a file that was sent may be linked to the store
    for path, why in scan.left_out.items():
        if _travels(path):
            raise OSError(0, why, path)
    _link_again(run, child)
    _keep_folder_times(run.code, child.code)
    sync_file_system(child.work)


def _is_bad(name: str, bad: int) -> bool:
    """Whether a file or a folder is by its name a checkpoint of this step or a later one."""
    number = _STEP.search(name)
    return bool(number and int(number[1]) >= bad and (_FOLDER.fullmatch(name) or _FILE.fullmatch(name)))


def _link_again(run: Run, child: Run) -> None:
    """Make the relative links below a run's code again, unless they lead out of the next run's files."""
    inside = os.path.realpath(child.work) + os.sep
    for folder, folders, files in os.walk(run.code):
        folders[:] = [name for name in folders if name not in CACHES]
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            if not os.path.islink(path) or os.path.isabs(os.readlink(path)):
                continue
            copy = child.code.below(os.path.relpath(path, run.code))
            there = os.path.realpath(os.path.join(os.path.dirname(copy), os.readlink(path)))
            if (
                there.startswith(inside)
                and os.path.isdir(os.path.dirname(copy))
                and not os.path.lexists(copy)
            ):
                os.symlink(os.readlink(path), copy)


def _keep_folder_times(source: str, target: str) -> None:
    for folder, _, _ in os.walk(target, topdown=False):
        try:
            status = os.lstat(os.path.join(source, os.path.relpath(folder, target)))
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(status.st_mode):
            os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))


def _travels(path: str) -> bool:
    return path.startswith(("code/", BESIDE + "/"))
