"""The files of a run that are here: where each has its place, and whether it is there in the same version.

Every version that is put into its place is first written down in `.pulled.jsonl`. So a file with other contents is the
user's own work, and is never replaced silently.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from launcher.runs.digests import Digests
from launcher.runs.mirror import Mirror
from launcher.values.output import CONTENT, Content, Kind, Output

PIECE = 1 << 20
YOURS = ".yours"
"""What the name of a file that was changed here gets when another version comes from the host."""


class LocalCopies:
    """The files of one run that are here."""

    def __init__(self, mirror: Mirror) -> None:
        """Read which versions were put here."""
        self._mirror = mirror
        self._log = mirror.folder / ".pulled.jsonl"
        self._parts = mirror.folder / ".parts"
        self._pulled: dict[str, dict[str, int]] = {}
        self._digests = Digests(mirror.folder)
        for content in _logged(self._log):
            self._remember(content)

    # where a file has its place

    def part_of(self, content: Content) -> Path:
        """Return the file that holds the first bytes of this version while it travels."""
        return self._parts / content.sha256

    def bytes_of_part(self, content: Content) -> int:
        """Return how much of this version has travelled before."""
        try:
            size = self.part_of(content).stat().st_size
        except FileNotFoundError:
            return 0
        return size if size <= content.size else 0

    def drop_parts(self) -> None:
        """Remove what earlier transfers left, once all that was asked for is in its place."""
        shutil.rmtree(self._parts, ignore_errors=True)

    # whether it is there

    def has(self, content: Content) -> bool:
        """Whether this version is in its place. A file that is as it was when it was read last is not read again."""
        place = self._mirror.place(content.path)
        if not _is_file(place, content.size):
            return False
        known = self._digests.known(str(place), place.stat())
        if known is None:
            known, _ = self._digests.read(str(place), lambda _count: None)
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

    def status(self, output: Output) -> str:
        """Return `yes`, `older` or `no`: whether a file that the host lists is here, by its size and time alone."""
        place = self._mirror.place(output.path)
        if not place.is_file():
            return "no"
        is_same = output.changed_ns in self._pulled.get(output.path, {}).values()
        return "yes" if is_same and _is_file(place, output.size) else "older"

    def read(self, path: str, advance: Callable[[int], None]) -> str | None:
        """Read a file in its place and return its SHA-256; None if it is not there. It is on the disk then.

        Raises OSError.
        """
        place = self._mirror.place(path)
        if not _is_file(place):
            return None
        digest = hashlib.sha256()
        with place.open("rb", buffering=0) as file:
            while piece := file.read(PIECE):
                digest.update(piece)
                advance(len(piece))
            os.fsync(file.fileno())
        return digest.hexdigest()

    def files(self) -> list[Path]:
        """Return every file here that the run may have written."""
        folders = (self._mirror.artifacts, self._mirror.outputs, self._mirror.checkpoints)
        return sorted(path for folder in folders for path in _below(folder))

    def outputs(self) -> list[Output]:
        """Return the same files as their host would list them."""
        kinds: dict[Path, tuple[str, Kind]] = {
            self._mirror.artifacts: ("artifacts", "artifact"),
            self._mirror.outputs / "HOME": ("home", "output"),
            self._mirror.outputs / "WORK": ("work", "output"),
            self._mirror.outputs: ("code", "output"),
            self._mirror.checkpoints: ("checkpoints", "checkpoint"),
        }
        found = []
        for path in self.files():
            folder = next(one for one in kinds if path.is_relative_to(one))
            top, kind = kinds[folder]
            about = path.stat()
            name = f"{top}/{path.relative_to(folder).as_posix()}"
            found.append(Output(name, kind, about.st_size, about.st_mtime_ns))
        return found

    # putting a file into its place

    def put(self, content: Content, part: Path) -> Path | None:
        """Put a whole and verified part into its place; return where the user's own file is now, if one was there.

        A kill at any moment leaves the old or the new file whole. Raises OSError.
        """
        place = self._mirror.place(content.path)
        moved = self._make_way(place, content.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        self._write_down(content)
        part.replace(place)
        return moved

    def _make_way(self, place: Path, path: str) -> Path | None:
        """Keep what the user has in the place of a file, or of one of its folders, under another name."""
        for folder in reversed(place.relative_to(self._mirror.folder).parents[:-1]):
            if os.path.lexists(self._mirror.folder / folder) and not (self._mirror.folder / folder).is_dir():
                return _move_aside(self._mirror.folder / folder)
        if not os.path.lexists(place):
            return None
        if _is_file(place):
            digest = self.read(path, lambda _count: None)
            if digest in self._pulled.get(path, {}):
                return None
        return _move_aside(place)

    def _write_down(self, content: Content) -> None:
        with self._log.open("a") as file:
            file.write(f"{json.dumps(content)}\n")
        self._remember(content)

    def _remember(self, content: Content) -> None:
        self._pulled.setdefault(content.path, {})[content.sha256] = content.changed_ns


def free_name(place: Path) -> Path:
    """Return the first of `NAME.yours`, `NAME.yours-2`, … that nothing has."""
    name, number = f"{place.name}{YOURS}", 2
    while os.path.lexists(place.with_name(name)):
        name, number = f"{place.name}{YOURS}-{number}", number + 1
    return place.with_name(name)


def sync_folders(places: Iterable[Path], top: Path) -> None:
    """Make the names of files durable, and those of the folders that they are in, below `top`. Raises OSError."""
    folders = {folder for place in places for folder in place.parents if folder.is_relative_to(top)}
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move_aside(place: Path) -> Path:
    aside = free_name(place)
    place.rename(aside)
    return aside


def _is_file(place: Path, size: int | None = None) -> bool:
    """Whether a regular file, no link, is in a place, with this size if one is given."""
    try:
        status = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and size in (None, status.st_size)


def _below(folder: Path) -> Iterator[Path]:
    for where, _, names in os.walk(folder):
        yield from (Path(where, name) for name in names)


def _logged(log: Path) -> Iterator[Content]:
    """Yield the versions in a log; a line that a crash has torn is passed over."""
    if log.exists():
        for line in log.read_bytes().splitlines():
            try:
                yield CONTENT.validate_json(line)
            except ValidationError:
                continue
