"""The inputs of a segment: the run's folder in its payload, an archive, the last segment's outputs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tarfile
from typing import Iterator, List, NamedTuple, Optional

from ..liveness import predecessor
from ..record.rundir import Run
from ..store import checkpoints
from .segment_config import Archive, PayloadError

ROOT = "launch"
"""The root of a segment, in the folder that the service keeps."""
_NUMBER = re.compile(r"[0-9]{4,9}")
_NOT_TAKEN = ("data", "incoming")
_PIECE = 1 << 20
MOUNT_DEPTH = 3
"""The depth of a source's mount point below the inputs: `datasets/USER/SLUG`, `notebooks/USER/SLUG`, or `SLUG`."""


class EarlierOutputs(NamedTuple):
    """The outputs of an earlier segment: its run's folder, and the last folder number of its record."""

    path: str
    last: int


def lay_out(payload: str, working: str, run_id: str) -> Run:
    """Move the run's folder of a payload below the root in a service's working folder.

    Raises PayloadError, OSError.
    """
    source = os.path.join(payload, "run")
    for name in ("control", "record"):
        if not os.path.isdir(os.path.join(source, name)):
            raise PayloadError("%s: it has no folder %s" % (source, name))
    root = os.path.join(working, ROOT)
    target = os.path.join(root, "runs", run_id)
    os.makedirs(os.path.dirname(target))  # an older one here would belong to another session
    shutil.move(source, target)
    run = Run(target)
    os.makedirs(run.work, exist_ok=True)
    scratch = os.path.join(payload, "cache")
    os.makedirs(scratch, exist_ok=True)
    os.symlink(scratch, run.cache)  # downloads of models would count as outputs
    if not run.numbers():
        raise PayloadError("%s: its record has no folder" % source)
    return run


def unpack(tree: Archive, inputs: str, run: Run) -> None:
    """Unpack a tree's archive into a run's work/. Raises PayloadError, OSError."""
    path = _find_archive(tree, inputs)
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                _check_member(member, path)
                archive.extract(member, run.work)
    except (tarfile.TarError, EOFError) as error:
        raise PayloadError("%s: %s" % (path, error)) from None


def _find_archive(tree: Archive, inputs: str) -> str:
    """Return the path of the archive with this name and contents: services put it into different folders."""
    damaged = None
    for folder in _folders(inputs):
        path = os.path.join(folder, tree.file)
        if os.path.isfile(path):
            if _sha256_of(path) == tree.sha256:
                return path
            damaged = path
    if damaged is not None:
        raise PayloadError("%s: its contents are not those that were sent" % damaged)
    raise PayloadError("%s: there is no %s in it" % (inputs, tree.file))


def _folders(inputs: str) -> Iterator[str]:
    """Yield all folders below the inputs, the mount points of sources first: walking a large data set takes minutes."""
    mounts = [inputs]
    for _ in range(MOUNT_DEPTH):
        mounts = [path for folder in mounts for path in _subfolders(folder)]
        yield from mounts
    for folder, _, _ in os.walk(inputs):
        yield folder


def _subfolders(folder: str) -> List[str]:
    try:
        return [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(_PIECE), b""):
            digest.update(piece)
    return digest.hexdigest()


def _check_member(member: tarfile.TarInfo, path: str) -> None:
    is_inside = not os.path.isabs(member.name) and ".." not in member.name.split("/")
    if not is_inside or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise PayloadError("%s: it holds %r" % (path, member.name))


# the segment before this one


def find_earlier(inputs: str, run_id: str) -> Optional[EarlierOutputs]:
    """Return the newest outputs of a run below the inputs; None if there are none."""
    tail = os.path.join(ROOT, "runs", run_id)
    found: List[EarlierOutputs] = []
    for folder in _folders(inputs):
        if found and folder == inputs:  # the mount points had one
            break
        path = os.path.join(folder, tail)
        if os.path.isdir(os.path.join(path, "record")):
            found.append(EarlierOutputs(path, _last_number(path)))
    return max(found, key=lambda one: one.last, default=None)


def _last_number(path: str) -> int:
    numbers = [int(name) for name in os.listdir(os.path.join(path, "record")) if _NUMBER.fullmatch(name)]
    return max(numbers, default=0)


def lay_over(earlier: EarlierOutputs, run: Run) -> int:
    """Copy an earlier segment's files over a run's work/; return the number of files. Raises OSError."""
    count = 0
    work = os.path.join(earlier.path, "work")
    for folder, names, files in os.walk(work):
        inside = os.path.relpath(folder, work)
        if inside == os.curdir:
            names[:] = [name for name in names if name not in _NOT_TAKEN]
        target = os.path.normpath(os.path.join(run.work, inside))
        os.makedirs(target, exist_ok=True)
        for name in files:
            source = os.path.join(folder, name)
            if os.path.isfile(source) and not os.path.islink(source):
                _put(source, os.path.join(target, name))
                count += 1
    _know_seals(earlier, run)
    return count


def _put(source: str, target: str) -> None:
    """Copy `source` over `target`, with the mode of `target`: a service does not keep modes."""
    mode = None
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(target).st_mode & 0o777
        os.unlink(target)  # it may be read-only, or a link
    shutil.copyfile(source, target)
    if mode is not None:
        os.chmod(target, mode)


def _know_seals(earlier: EarlierOutputs, run: Run) -> None:
    """Add the earlier segment's checkpoints to the seals of later folders that clients made.

    Those clients may not have had the checkpoints. None of these checkpoints is late (store/checkpoints.py):
    the earlier segment was over before those folders were made.
    """
    for number in _numbers_after(run, earlier.last):
        folder = run.folder(number)
        sealed = folder.read_sealed()
        if sealed is not None and predecessor.is_by_a_client(folder):
            folder.write_sealed(sealed.union(checkpoints.sealed_now(run)))


def _numbers_after(run: Run, last: int) -> Iterator[int]:
    return (number for number in run.numbers() if number > last)
