"""The code of a batch, frozen at the first item, so that later edits change no item.

Small files are copied beside the queue. Of a larger file only the SHA-256 is stored; once that file has
changed, further items are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from launcher.base.client_files import read_regular
from launcher.base.json_file import MAX_BYTES, parse_object
from launcher.base.text import first_of
from launcher.copy.run_files import RunFiles
from launcher.errors import RefusedError, RunError
from launcher.upload import tree
from launcher.upload.folder_walk import WalkedFile
from launcher.upload.loading import Load
from launcher.values.plan import Commit

FOLDER = "code"
INDEX = "index.json"
GENERATION = "generation.json"
"""The number of times the user asked for new code.

Earlier copies stay, for runs that may be resumed elsewhere.
"""
MAX_COPIED = 10_000_000
"""The size in bytes above which a file is not copied."""


class _Kept(NamedTuple):
    """A frozen entry, and its SHA-256 if it is a file."""

    entry: WalkedFile
    sha256: str | None


class _Frozen(NamedTuple):
    """The frozen entries, and the commit of the folder when it was frozen."""

    entries: list[_Kept]
    commit: Commit | None


class FrozenCode:
    """The code of a batch, below its folder. Thread-safe within one process."""

    def __init__(self, batch: Path, tell: Callable[[str], None]) -> None:
        """Freeze the code of the batch in this folder.

        `tell` gets the message about changed files, once for each file.
        """
        self._files, self.batch, self._tell = _files(batch), batch.name, tell
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def of_batch(self, load: Load, job_file: Path | None = None) -> Load:
        """Return an item's upload: the batch's frozen code, and the data as it is now.

        The first call freezes the code. Raises RefusedError if a large file or the job's own file has changed, and RunError on a disk error.
        """
        code = load.selection.folder
        with self._lock:
            name = hashlib.sha256(os.fsencode(code)).hexdigest()[:16]
            generation = _generation(self._files)
            folder = f"{name}-{generation}" if generation else name
            try:
                if not self._files.is_file(f"{folder}/{INDEX}"):
                    _keep(load, self._files, folder)
                return self._with(load, _read(self._files, folder), folder, job_file)
            except OSError as error:
                raise RunError(
                    f"{error.filename or self._files.folder}: {error.strerror}\n  nothing was begun"
                ) from error

    def _with(self, load: Load, kept: _Frozen, folder: str, job_file: Path | None) -> Load:
        now = tree.manifest(load.tree, load.digests, lambda _: None)
        entries, changed = [], []
        for entry, sha256 in kept.entries:
            is_copied = entry.is_file and entry.size <= MAX_COPIED
            if entry.path not in now or not _is_same(now[entry.path], entry, sha256):
                changed.append(entry)
                if entry.is_file and not is_copied:
                    raise RefusedError(f"{entry.source} is too large for a copy, and {_changed(self.batch)}")
            copy = self._files.at(f"{folder}/{entry.path}")
            entries.append(entry._replace(source=copy) if is_copied else entry)
        if job_file is not None and any(entry.source == str(job_file.resolve()) for entry in changed):
            raise RefusedError(f"{job_file}: {_changed(self.batch)}")
        self._say({entry.name for entry in changed if not _is_our_output(entry.source)})
        data = [entry for entry in load.tree.entries if not entry.path.startswith("code/")]
        whole = load.tree._replace(
            entries=sorted([*entries, *data], key=lambda one: one.path), included=(), commit=kept.commit
        )
        sizes = {entry.source: entry.size for entry in whole.entries if entry.is_file}
        selection = load.selection._replace(
            files=sum(entry.folder is None for entry in whole.entries),
            bytes=sum(sizes.values()),
            paths=frozenset(entry.name for entry in entries),
        )
        return load._replace(tree=whole, selection=selection)

    def _say(self, changed: set[str]) -> None:
        if not changed - self._told:
            return
        self._told |= changed
        self._tell(
            f"changed since {self.batch} began: {first_of(sorted(changed))}; its items use the code as it was then"
            f"   to use the changed code, end this command, then   launch batch resume {self.batch} --new-code"
        )


def _changed(batch: str) -> str:
    return (
        "has changed since the batch began\n"
        f"  put it back, then   launch batch resume {batch} --failed\n"
        f"  or take all code as it is now   launch batch resume {batch} --failed --new-code"
    )


def forget(batch: Path) -> None:
    """Make the next item of a batch freeze the code again. Raises OSError."""
    files = _files(batch)
    if files.is_folder():
        files.write(GENERATION, json.dumps({"generation": _generation(files) + 1}).encode())


def _files(batch: Path) -> RunFiles:
    """Return the files of a batch's code. No folder below the runs folder may be a link."""
    return RunFiles(batch / FOLDER, batch.parent.parent)


def _generation(files: RunFiles) -> int:
    found = files.read_json(GENERATION).get("generation")
    return found if isinstance(found, int) else 0


def _keep(load: Load, files: RunFiles, folder: str) -> None:
    """Copy the code, and write its index last. Raises OSError."""
    files.remove_tree(folder)
    known = tree.manifest(load.tree, load.digests, lambda _: None)
    found = []
    for entry in load.tree.entries:
        if not entry.path.startswith("code/"):
            continue
        sha256, size = known[entry.path].get("sha256"), known[entry.path].get("size", 0)
        if entry.is_file and size <= MAX_COPIED:
            data = read_regular(entry.source, MAX_BYTES)
            copy = f"{folder}/{entry.path}"
            files.make_folder(os.path.dirname(copy))
            with files.open(copy, "x+b") as file:
                file.write(data)
                os.fchmod(file.fileno(), os.stat(entry.source).st_mode & 0o777)
            sha256, size = hashlib.sha256(data).hexdigest(), len(data)
        found.append([*entry._replace(size=size), sha256])
    commit = load.tree.commit.model_dump() if load.tree.commit is not None else None
    files.write(f"{folder}/{INDEX}", json.dumps({"entries": found, "commit": commit}).encode(), durably=True)


def _read(files: RunFiles, folder: str) -> _Frozen:
    index = f"{folder}/{INDEX}"
    try:
        written = parse_object(files.read(index))
        entries = [_Kept(WalkedFile(*values), sha256) for *values, sha256 in written["entries"]]
        commit = written.get("commit")  # launcher 0.1.0 wrote none
        return _Frozen(entries, Commit.model_validate(commit) if commit is not None else None)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{files.folder / index}: is damaged\n  nothing was begun") from error


def _is_same(now: tree.PathRecord, entry: WalkedFile, sha256: str | None) -> bool:
    if entry.link is not None:
        return now.get("link") == entry.link
    if entry.folder is not None:
        return now.get("folder") == entry.folder
    return now.get("sha256") == sha256


def _is_our_output(path: str) -> bool:
    """Return whether a file receives this command's own output, as with `launch batch FILE >out.txt`."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return any(os.path.samestat(status, os.fstat(number)) for number in (1, 2))
    return False
