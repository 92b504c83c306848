"""The index of this user's runs: the only source for a run's host and how to contact it.

Each run has a folder, `~/.local/share/launch/runs/RUN`. Its `run.json` has the host as it was resolved at the
launch, the id of its root and the digest of its plan. Beside it are the command line, the upload record and
the move record. A local copy of the run, below a project's `runs` folder, is untrusted data: a repository may
contain one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import SerializeAsAny, ValidationError

from launcher.base.whole_file import sync, write_durably
from launcher.copy.index_folder import FILE, folder, knows, place, read, runs
from launcher.copy.run_id import is_of_job
from launcher.errors import RunError
from launcher.values.base import Record
from launcher.values.host import Host

__all__ = ["IndexEntry", "folder", "knows", "place", "runs"]


class IndexEntry(Record):
    """A run of this user.

    For a run on the host `local`, `machine` is the name of that computer. `plan` is the SHA-256 of the run's plan,
    empty until this client has the plan. `order` is the number of the launch, 0 for a run of another client.
    `copies` are the folders that may hold a local copy, as hints. Times are in seconds since 1970.
    """

    version: Literal[1] = 1
    run: str
    host: SerializeAsAny[Host]
    machine: str | None = None
    root: str
    plan: str = ""
    launched: float
    order: int = 0
    copies: tuple[str, ...] = ()
    batch: str | None = None
    freed: float | None = None

    @property
    def place_in_order(self) -> tuple[int, float, str]:
        """The sort key of this user's runs: the number of the launch, its time, the id."""
        return self.order, self.launched, self.run

    @property
    def elsewhere(self) -> str | None:
        """The name of the run's computer, if the run's host is `local` on another computer than this one; else None."""
        return self.machine if self.machine not in (None, this_machine()) else None


def this_machine() -> str:
    """Return this machine's name with the start of its machine id, if it has one, because names are not unique."""
    with contextlib.suppress(OSError):
        return f"{platform.node()}/{Path('/etc/machine-id').read_text()[:8].strip()}".rstrip("/")
    return platform.node()


def find(run: str) -> IndexEntry | None:
    """Return a run's entry; None if this user has no such run, or if its entry is damaged.

    An unchanged entry is read once per process.
    """
    try:
        status = os.stat(place(run) / FILE)
    except OSError:
        return None
    seen = status.st_ino, status.st_mtime_ns, status.st_size
    known = _found.get(run)
    if known is None or known[0] != seen or known[1] != folder():
        known = _found[run] = (seen, folder(), _read(run))
    return known[2]


_found: dict[str, tuple[tuple[int, int, int], Path, IndexEntry | None]] = {}
"""The entries that this process has read, each with the inode, time and size of its file."""


def _read(run: str) -> IndexEntry | None:
    values = read(run)
    try:
        entry = IndexEntry.model_validate(values) if values else None
    except ValidationError:
        return None
    return entry if entry is not None and entry.run == run else None


def entries() -> list[IndexEntry]:
    """Return all entries, the latest launched last."""
    found = [entry for run in runs() if (entry := find(run)) is not None]
    return sorted(found, key=lambda entry: entry.place_in_order)


def has_run_of(job: str, host: str) -> bool:
    """Return whether this user has launched a job of this name on a host before."""
    return any(
        is_of_job(run, job) and (entry := find(run)) is not None and entry.host.name == host for run in runs()
    )


def of_batch(name: str, since: float) -> list[IndexEntry]:
    """Return the runs of a batch that were launched since a given time, the latest last."""
    recent = (find(run) for run, changed in runs().items() if changed >= since * 1e9)
    found = [entry for entry in recent if entry and entry.batch == name and entry.launched >= since]
    return sorted(found, key=lambda entry: entry.place_in_order)


def copies_of(run: str) -> tuple[str, ...]:
    """Return the folders that may hold a local copy of a run."""
    entry = find(run)
    return () if entry is None else entry.copies


@contextlib.contextmanager
def alone(run: str, errand: str) -> Iterator[None]:
    """Hold the lock of a task on a run, so that only one process of this user performs the task at a time.

    Raises OSError.
    """
    where = place(run)
    where.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (where / f".{errand}.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def damaged(run: str) -> Path | None:
    """Return the file of a damaged entry; None if it is missing or readable."""
    path = place(run) / FILE
    try:
        os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError:
        return path
    return path if find(run) is None else None


def create(entry: IndexEntry) -> None:
    """Write the entry of a new run durably. Raises FileExistsError, and other OSErrors.

    An entry torn by a power loss of this machine counts as missing, and is replaced.
    """
    where = place(entry.run)
    where.mkdir(parents=True, exist_ok=True, mode=0o700)
    if damaged(entry.run):
        write_durably(where / FILE, _written(entry))
    else:
        descriptor = os.open(where / FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(_written(entry))
        except OSError:  # a full disk
            (where / FILE).unlink()
            raise
        sync(where / FILE)
    _sync_folders(where)


def update(entry: IndexEntry, **news: object) -> IndexEntry:
    """Replace the entry of a run durably; return the new one. Raises OSError."""
    changed, where = entry.model_copy(update=news), place(entry.run)
    if changed != entry:
        write_durably(where / FILE, _written(changed))
    else:
        sync(where / FILE)  # the command that wrote the file may have died before its sync
    _sync_folders(where)
    return changed


def forget(run: str) -> None:
    """Remove a run from the index, with all records of it. Raises OSError."""
    path = place(run)
    with contextlib.suppress(FileNotFoundError):
        (path / FILE).unlink()
        shutil.rmtree(path)


def _sync_folders(where: Path) -> None:
    """Sync the folder of a run and the folders above it, so that their names are durable. Raises OSError."""
    sync(where, *where.parents[:3])


def _written(entry: IndexEntry) -> bytes:
    return f"{entry.model_dump_json()}\n".encode()


def not_known(run: str, copy: Path) -> RunError:
    """Return the error for a run that is not in the index, although a folder here has a local copy of it."""
    short = run.rpartition("-")[2]
    if file := damaged(run):
        return RunError(f"{file} is damaged\n  make it anew   launch attach --host HOST {short}")
    return RunError(
        f"{run} is foreign: {copy} is here, but you have not launched or attached that run\n"
        f"  if it is yours   launch attach --host HOST {short}     to remove the copy   rm -r {shlex.quote(str(copy))}"
    )
