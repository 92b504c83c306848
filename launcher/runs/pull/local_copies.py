"""The files of a run that are here: where each has its place, and whether it is there in the same version.

Every version that is put into its place is first written down in `pulled.jsonl`, among this user's records of the run.
So a file with other contents is the user's own work, and is never replaced silently.
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

from launcher.copy.mirror import Mirror
from launcher.copy.run_files import RunFiles
from launcher.upload.digests import Digests
from launcher.values.reported.output import CONTENT, Content, Kind, RunOutput

PIECE = 1 << 20
LOG = "pulled.jsonl"
PARTS = ".parts"
"""The folder of files on their way, each by its SHA-256."""
YOURS = ".yours"
"""What the name of a file that was changed here gets when another version comes from the host."""

Here = Literal["yes", "older", "no"]
"""Whether a file of a run is on this machine; `older`: another version of it."""


class LocalCopies:
    """The files of one run that are here."""

    def __init__(self, mirror: Mirror) -> None:
        """Read which versions were put here."""
        self._mirror, self._files = mirror, mirror.files
        self._pulled: dict[str, dict[str, int]] = {}
        self._digests = Digests(mirror.folder)
        with mirror.disk_errors(mirror.folder):
            for content in _logged(mirror.records):
                self._remember(content)

    # where a file has its place

    def part_of(self, content: Content) -> Path:
        """Return the file that holds the first bytes of this version while it travels."""
        return self._files.folder / PARTS / content.sha256

    def bytes_of_part(self, content: Content) -> int:
        """Return how much of this version has travelled before."""
        status = self._files.status(self.part_of(content))
        is_part = status is not None and stat.S_ISREG(status.st_mode) and status.st_size <= content.size
        return status.st_size if status is not None and is_part else 0

    def drop_parts(self) -> None:
        """Remove what earlier transfers left, once all that was asked for is in its place."""
        with contextlib.suppress(OSError):
            self._files.remove_tree(PARTS)

    # whether it is there

    def has(self, content: Content) -> bool:
        """Whether this version is in its place. A file that is as it was when it was read last is not read again."""
        place = self._mirror.place(content.path)
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
        """Whether a file of the run came from its host with this content, now or before."""
        return sha256 in self._pulled.get(path, {})

    def save_digests(self) -> None:
        """Keep the digests of what was read for the next time."""
        self._digests.save()

    def status(self, output: RunOutput) -> Here:
        """Return `yes`, `older` or `no`: whether a file that the host lists is here, by its size and time alone."""
        place = self._mirror.place(output.path)
        if not self._files.is_file(place):
            return "no"
        is_same = output.changed_ns in self._pulled.get(output.path, {}).values()
        return "yes" if is_same and self._files.is_file(place, output.size) else "older"

    def read(self, path: str, advance: Callable[[int], None]) -> str | None:
        """Read a file in its place and return its SHA-256; None if it is not there. It is on the disk then.

        Raises OSError.
        """
        place = self._mirror.place(path)
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
        """Return every file here that the run may have written, with its status; a link is one, not what it leads to."""
        folders = (self._mirror.artifacts, self._mirror.outputs, self._mirror.checkpoints)
        found = {
            self._files.folder / path: status for one in folders for path, status in self._files.walk(one)
        }
        return dict(sorted(found.items()))

    def outputs(self) -> list[RunOutput]:
        """Return the same files as their host would list them."""
        kinds: dict[Path, tuple[str, Kind]] = {
            self._mirror.artifacts: ("artifacts", "artifact"),
            self._mirror.outputs / "HOME": ("home", "output"),
            self._mirror.outputs / "WORK": ("work", "output"),
            self._mirror.outputs: ("code", "output"),
            self._mirror.checkpoints: ("checkpoints", "checkpoint"),
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
        """Put a whole and verified part into its place; return where the user's own file is now, if one was there.

        A kill at any moment leaves the old or the new file whole. Raises OSError.
        """
        place = self._mirror.place(content.path)
        moved = self._make_way(place, content.path)
        self._files.make_folder(place.parent)
        self._write_down(content)
        self._files.rename(part, place)
        return moved

    def _make_way(self, place: Path, path: str) -> Path | None:
        """Keep what the user has in the place of a file, or of one of its folders, under another name."""
        for folder in reversed(place.relative_to(self._mirror.folder).parents[:-1]):
            if self._files.exists(str(folder)) and not self._files.is_folder(str(folder)):
                return self._move_aside(self._mirror.folder / folder)
        if not self._files.exists(place):
            return None
        if self._files.is_file(place):
            digest = self.read(path, lambda _count: None)
            if digest in self._pulled.get(path, {}):
                return None
        return self._move_aside(place)

    def _move_aside(self, place: Path) -> Path:
        """Give what is in a place the first of the names `NAME.yours`, `NAME.yours-2`, … that nothing has."""
        aside, number = place.with_name(f"{place.name}{YOURS}"), 2
        while self._files.exists(aside):
            aside, number = place.with_name(f"{place.name}{YOURS}-{number}"), number + 1
        self._files.rename(place, aside)
        return aside

    def _write_down(self, content: Content) -> None:
        self._mirror.records.folder.mkdir(parents=True, exist_ok=True)
        with self._mirror.records.open(LOG, "ab") as file:
            file.write(f"{json.dumps(content)}\n".encode())
        self._remember(content)

    def _remember(self, content: Content) -> None:
        self._pulled.setdefault(content.path, {})[content.sha256] = content.changed_ns


def sync_folders(places: Iterable[Path], top: Path) -> None:
    """Make the names of files durable, and those of the folders that they are in, below `top`. Raises OSError."""
    folders = {folder for place in places for folder in place.parents if folder.is_relative_to(top)}
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _logged(records: RunFiles) -> Iterator[Content]:
    """Yield the versions in a log; a line that a crash has torn is passed over."""
    for line in records.read(LOG).splitlines() if records.exists(LOG) else ():
        try:
            yield CONTENT.validate_json(line)
        except ValidationError:
            continue
