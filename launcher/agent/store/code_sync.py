"""Make sure that a run's code is on the disk, and repair code that was lost when its host stopped.

Syncing 10,000 files one by one takes longer than sending them. So a separate process *settles* the run while
it starts: it syncs the file system and leaves a mark. If the host has booted since the run was made and the
mark is missing, the code is compared with its manifest before the run starts, and files that differ are
copied from the store again.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Callable, List, NamedTuple

from ..record.files import sync_file_system, write_over
from ..record.rundir import Run
from ..record.strict_json import JsonObject
from ..system import process
from . import tree_files
from .manifest import FileTree, ShippingError, code_of, data_of, read_manifest
from .store import Store

SPARE_FILES = 100  # with fewer files a copy is fast without a spare
MAX_NAMED = 5
LOST = "code-damaged"


def main(_arguments: list[str]) -> int:
    """Settle the run of the current folder at the lowest priority, then make a spare copy of its code.

    Returns 0.
    """
    run = Run(os.getcwd())
    os.nice(19)
    settle(run)
    if len(read_manifest(run.manifest)) >= SPARE_FILES:
        store = Store(run.root)
        with contextlib.suppress(ShippingError), store.shared():  # while `gc` runs, no spare is made
            store.make_spare(run)
    return 0


def start_settling(run: Run) -> None:
    """Settle a run in a separate process, without waiting for it.

    The process does not belong to the run, so its command line does not name the run.
    """
    subprocess.Popen(
        [sys.executable, "-I", os.path.abspath(sys.argv[0]), "settle-run"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=run.path,
        start_new_session=True,
    )


def settle(run: Run) -> None:
    """Sync a run's code and data to the disk, then leave a mark beside its plan. Raises OSError."""
    if not is_doubtful(run):
        _settle(run)


def _settle(run: Run) -> None:
    sync_file_system(run.path)
    write_over(run.settled, "")


def is_doubtful(run: Run) -> bool:
    """Whether the host stopped before a run's code was synced, so that the disk's content is unknown."""
    return not os.path.exists(run.settled) and run.prepared().get("boot_id") != process.boot_id()


class Mended(NamedTuple):
    """The result of a repair: `paths` were copied again, or else the store lacks whole copies of `lost`."""

    paths: List[str]
    lost: List[str]


def mend(run: Run, is_due: Callable[[], bool]) -> Mended | None:
    """Restore the code and data of a doubtful run from the store; None if `is_due` interrupted it.

    The job's additions and changes stay: such a file's inode changed after the manifest was written, and the
    manifest was written after the files. Raises OSError, and ShippingError while `gc` runs.
    """
    manifest = read_manifest(run.manifest)
    placed_ns = os.stat(run.manifest).st_mtime_ns if manifest else 0
    top = os.path.realpath(run.path) + run.code[len(run.path) :]
    changed = FileTree()
    for path, entry in code_of(manifest).items():
        if is_due():
            return None
        place = os.path.join(run.code, path)
        folder = os.path.join(top, os.path.dirname(path)).rstrip("/")
        # A link in place of the code folder, or of a folder in it, was made by the job: uploads follow no
        # links.
        if os.path.realpath(folder) != folder:
            continue
        if not tree_files.is_as_sent(place, entry) and not _is_newer(place, placed_ns):
            changed[path] = entry
    store = Store(run.root)
    with store.shared():
        missing = store.make_anew(run, changed, data_of(manifest))
    if missing:
        return Mended([], sorted(path for path, entry in manifest.items() if entry.get("sha256") in missing))
    _settle(run)
    return Mended(sorted(changed), [])


def _is_newer(path: str, placed_ns: int) -> bool:
    try:
        return os.lstat(path).st_ctime_ns > placed_ns
    except OSError:
        return False


def words_of(run: Run, mended: Mended) -> JsonObject:
    """Return what to record of a repair: the number of files and some paths; a failure for lost files."""
    if not mended.lost:
        return {"code": {"mended": len(mended.paths), "paths": mended.paths[:MAX_NAMED]}}
    more = len(mended.lost) - MAX_NAMED
    named = ", ".join(mended.lost[:MAX_NAMED]) + (" and %d more" % more if more > 0 else "")
    return {
        "class": LOST,
        "line": named,
        "why": "the host stopped before its disk had all files of the run, and the store has no whole copy of these",
        "mend": "launch rerun %s: it begins anew, and the files are sent again" % run.id,
    }
