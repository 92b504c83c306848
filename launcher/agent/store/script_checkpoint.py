"""The checkpoints that a script saves itself, in its own folder and format, without the worker.

Only the script can load one. A run that continues from it gets a copy of all files that the script wrote. The
start-up hook passes a checkpoint by transformers' Trainer to the next Trainer. For any other, the user gives
the script's own option, or the job says `restart` because the script finds its checkpoint itself.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import Iterator, NamedTuple, Optional

from ..record.rundir import Run
from ..record.safe_open import link_regular
from .checkpoints import SENTINEL
from .hidden_names import HiddenNames
from .manifest import code_of, read_manifest
from .outputs import BESIDE, CACHES, MAX_FILES, OutputDigests, OutputScan, open_output

TRAINER_ARGUMENTS, TRAINER_STATE = "training_args.bin", "trainer_state.json"
"""Files of a checkpoint by transformers' Trainer: one is written with the weights, the other last."""
_NAMES = re.compile(
    r"(?:checkpoint[-_]|(?:.*[-_])?step[-_=]?)(\d+)(?:\.(?:ckpt|pth?|tar))*|(?:(?:.*[-_])?epoch[-_=]?\d+|checkpoint|ckpt|last|latest)(?:\.(?:ckpt|pth?|tar))+"
)
"""Names of checkpoints: `checkpoint-20` by Trainer, `step_20` by accelerate, `epoch=1-step=20.ckpt` by Lightning, `ckpt.pt`."""
_WRITTEN_ONCE = re.compile(r"/checkpoint-\d+/")
"""Folders whose files no script writes over: a copy of such a file is a hard link."""


class OwnCheckpoint(NamedTuple):
    """A script's own checkpoint: its path below the code, its step, and whether a Trainer saved it."""

    path: str
    step: int
    is_trainers: bool


def newest(run: Run, step: int) -> Optional[OwnCheckpoint]:
    """Return the checkpoint that the script saved last; None without one.

    Checkpoints that were sent with the code do not count, nor one that a Trainer was still writing. `step` is the
    run's last step, for a checkpoint whose name has none.
    """
    sent = [*code_of(read_manifest(run.manifest))]
    found = []
    for path, name in _named(run):
        folder = run.code.below(path)
        is_torn = os.path.exists(folder.below(SENTINEL)) or (
            os.path.exists(folder.below(TRAINER_ARGUMENTS))
            and not os.path.exists(folder.below(TRAINER_STATE))
        )
        was_sent = any(one == path or one.startswith(path + "/") for one in sent)
        if not is_torn and not was_sent:
            found.append((os.lstat(folder).st_mtime_ns, int(name[1] or step), path))
    if not found:
        return None
    _, saved, path = max(found)
    return OwnCheckpoint(path, saved, os.path.exists(run.code.below(path, TRAINER_STATE)))


def _named(run: Run) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield the path below the code of each file and folder that has the name of a checkpoint, and the match."""
    seen = 0
    for folder, folders, files in os.walk(run.code):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            match = _NAMES.fullmatch(name)
            if match and not os.path.islink(path):
                yield os.path.relpath(path, run.code), match
        folders[:] = [name for name in folders if name not in CACHES and not _NAMES.fullmatch(name)]
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


def hand_on(run: Run, child: Run) -> None:
    """Copy the files that a run's script wrote into the next run, durably. A file that was sent stays as it was sent.

    Raises OSError for a file that cannot be read or written.
    """
    scan = OutputScan(run, OutputDigests(run), matches_all=True)
    names = HiddenNames(run)
    for found in scan.outputs():
        if not _travels(found.path):
            continue
        real = names.real(found.path)
        top, _, rest = real.partition("/")
        source, copy = (
            (one.work if top == BESIDE else one.work.below(top)).below(rest) for one in (run, child)
        )
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        if os.path.lexists(copy) or (_WRITTEN_ONCE.search(real) and link_regular(source, copy)):
            continue
        descriptor, status = open_output(run, found.path)
        with open(descriptor, "rb") as file, open(copy, "xb") as target:
            shutil.copyfileobj(file, target, 1 << 20)
            target.flush()
            os.fchmod(target.fileno(), status.st_mode & 0o777)
            os.fsync(target.fileno())
    for path, why in scan.left_out.items():
        if _travels(path):
            raise OSError(0, why, path)


def _travels(path: str) -> bool:
    return path.startswith(("code/", BESIDE + "/"))
