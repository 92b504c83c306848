"""The local files of a run: their places, and whether they have the host's version.

Every version is recorded in `pulled.jsonl`, among this user's records of the run, before it is put in place.
So a file with other contents is the user's work, and is never replaced silently.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from launcher.base.whole_file import sync
from launcher.copy.local_copy import LocalCopy
from launcher.copy.run_files import RunFiles
from launcher.upload.digests import Digests
from launcher.values.reported.output import CONTENT, Content, Kind, RunOutput

PIECE = 1 << 20
LOG = "pulled.jsonl"
PARTS = ".parts"
"""The folder of files in transfer, each named by its SHA-256."""
YOURS = ".yours"
"""The suffix for a file that was changed here, added when another version comes from the host."""

Here = Literal["yes", "older", "no"]
"""Whether a file of a run is on this machine; `older`: another version of it."""


class LocalCopies:
    """The local files of one run."""

    def __init__(self, local_copy: LocalCopy) -> None:
        """Read the record of the versions that were put here."""
        self._local_copy, self._files = local_copy, local_copy.files
        self._pulled: dict[str, dict[str, int]] = {}
        self._digests = Digests(local_copy.folder)
        with local_copy.disk_errors(local_copy.folder):
            for content in _logged(local_copy.records):
                self._remember(content)

    # the places of files

    def part_of(self, content: Content) -> Path:
        """Return the file that holds the first bytes of this version during its transfer."""
        return self._files.folder / PARTS / content.sha256

    def bytes_of_part(self, content: Content) -> int:
        """Return how many bytes of this version have already arrived."""
        status = self._files.status(self.part_of(content))
        is_part = status is not None and stat.S_ISREG(status.st_mode) and status.st_size <= content.size
        return status.st_size if status is not None and is_part else 0

    def drop_parts(self) -> None:
        """Remove the parts of earlier transfers, once all requested files are in place."""
        with contextlib.suppress(OSError):
            self._files.remove_tree(PARTS)

    # checks of the files in place

    def has(self, content: Content) -> bool:
        """Return whether this version is in its place.

        A file that is unchanged since the last reading is not read again.
        """
        place = self._local_copy.place(content.path)
        status = self._files.status(place)
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_size != content.size:
            return False
        known = self._digests.known(str(place), status)
        if known is None:
            known, _ = self._digests.read(self._files.at(place), lambda _count: None)
        digest = known.sha256
        if digest == content.sha256 and self._pulled.get(content.path, {}).get(digest) != content.changed_ns:
            self._write_down(content)
        return digest == content.sha256

    def came(self, path: str, sha256: str) -> bool:
        """Return whether a file of the run with this content has ever come from its host."""
        return sha256 in self._pulled.get(path, {})

    def save_digests(self) -> None:
        """Store the digests of the files that were read, for later runs."""
        self._digests.save()

    def status(self, output: RunOutput) -> Here:
        """Return `yes`, `older` or `no`: whether a file that the host lists is here, by its size and time only."""
        place = self._local_copy.place(output.path)
        if not self._files.is_file(place):
            return "no"
        is_same = output.changed_ns in self._pulled.get(output.path, {}).values()
        return "yes" if is_same and self._files.is_file(place, output.size) else "older"

    def read(self, path: str, advance: Callable[[int], None]) -> str | None:
        """Read a file in its place and sync it to the disk; return its SHA-256, or None if it is missing.

        Raises OSError.
        """
        place = self._local_copy.place(path)
        if not self._files.is_file(place):
            return None
        digest = hashlib.sha256()
        with self._files.open(place, buffering=0) as file:
            while piece := file.read(PIECE):
                digest.update(piece)
                advance(len(piece))
            os.fsync(file.fileno())
        return digest.hexdigest()

    def files(self) -> dict[Path, os.stat_result]:
        """Return every local file that the run may have written, with its status; links are listed, but not followed."""
        folders = (self._local_copy.artifacts, self._local_copy.outputs, self._local_copy.checkpoints)
        found = {
            self._files.folder / path: status for one in folders for path, status in self._files.walk(one)
        }
        return dict(sorted(found.items()))

    def outputs(self) -> list[RunOutput]:
        """Return the local files, without links, in the form of the host's list."""
        kinds: dict[Path, tuple[str, Kind]] = {
            self._local_copy.artifacts: ("artifacts", "artifact"),
            self._local_copy.outputs / "HOME": ("home", "output"),
            self._local_copy.outputs / "WORK": ("work", "output"),
            self._local_copy.outputs: ("code", "output"),
            self._local_copy.checkpoints: ("checkpoints", "checkpoint"),
        }
        found = []
        for path, about in self.files().items():
            if not stat.S_ISREG(about.st_mode):
                continue
            folder = next(one for one in kinds if path.is_relative_to(one))
            top, kind = kinds[folder]
            name = f"{top}/{path.relative_to(folder).as_posix()}"
            found.append(RunOutput(name, kind, about.st_size, about.st_mtime_ns))
        return found

    # putting a file into its place

    def put(self, content: Content, part: Path) -> Path | None:
        """Put a whole and verified part into its place; return the new path of a user's file that was in the way.

        A kill at any moment leaves the old or the new file whole. Raises OSError.
        """
        place = self._local_copy.place(content.path)
        moved = self._make_way(place, content.path)
        self._files.make_folder(place.parent)
        self._write_down(content)
        self._files.rename(part, place)
        return moved

    def _make_way(self, place: Path, path: str) -> Path | None:
        """Rename a user's file that is in the way of a run's file or of one of that file's folders."""
        for folder in reversed(place.relative_to(self._local_copy.folder).parents[:-1]):
            if self._files.exists(str(folder)) and not self._files.is_folder(str(folder)):
                return self._move_aside(self._local_copy.folder / folder)
        if not self._files.exists(place):
            return None
        if self._files.is_file(place):
            digest = self.read(path, lambda _count: None)
            if digest in self._pulled.get(path, {}):
                return None
        return self._move_aside(place)

    def _move_aside(self, place: Path) -> Path:
        """Rename a file to the first free name of `NAME.yours`, `NAME.yours-2`, …; return it."""
        aside, number = place.with_name(f"{place.name}{YOURS}"), 2
        while self._files.exists(aside):
            aside, number = place.with_name(f"{place.name}{YOURS}-{number}"), number + 1
        self._files.rename(place, aside)
        return aside

    def _write_down(self, content: Content) -> None:
        self._local_copy.records.folder.mkdir(parents=True, exist_ok=True)
        with self._local_copy.records.open(LOG, "ab") as file:
            file.write(f"{json.dumps(content)}\n".encode())
        self._remember(content)

    def _remember(self, content: Content) -> None:
        self._pulled.setdefault(content.path, {})[content.sha256] = content.changed_ns


def sync_folders(places: Iterable[Path], top: Path) -> None:
    """Sync the names of files, and of their folders below `top`, to the disk. Raises OSError."""
    sync(*{folder for place in places for folder in place.parents if folder.is_relative_to(top)})


def _logged(records: RunFiles) -> Iterator[Content]:
    """Yield the versions in a log; a line torn by a crash is skipped."""
    for line in records.read(LOG).splitlines() if records.exists(LOG) else ():
        try:
            yield CONTENT.validate_json(line)
        except ValidationError:
            continue
