"""The files of a run's local copy, opened without following links, and regular files only.

A cloned repository may contain a `runs` folder in which a file is a link, a pipe or endless. So each folder,
from the run's down, is opened by its descriptor, as the agent does below its runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal, cast

from launcher.base.client_files import (
    RunPath,
    UnreadableError,
    open_folder,
    open_regular,
    opened_folder,
    parent_of,
    read_regular,
    status_of,
)
from launcher.base.json_file import MAX_BYTES, JsonObject, parse_object

MAX_JSON = 16 << 20
"""The maximum size of a JSON object in a file, in bytes."""
MAX_LINE = 1 << 20
_FLAGS = {
    "rb": os.O_RDONLY,
    "r+b": os.O_RDWR,
    "x+b": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "wb": os.O_WRONLY | os.O_CREAT,  # truncated once it is known to be a regular file
    "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
}


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file.

    A line of more than MAX_LINE bytes comes in pieces, none of which is a record.
    """
    return iter(lambda: file.readline(MAX_LINE), b"")


class RunFiles:
    """The files below a run's folder, or below another folder inside `top`.

    Paths are relative to that folder, or absolute inside it. Every method that opens or changes a file raises
    UnreadableError, an OSError, for a path that leads through a link below `top`, out of the folder, or to
    anything but a regular file or a folder.
    """

    def __init__(self, folder: Path, top: Path | None = None) -> None:
        """Set the folders; nothing is opened or made. By default `top` is the folder above."""
        self.folder = folder
        self._folder, self._top = str(folder), str(top or folder.parent)

    # looking

    def status(self, path: Path | str) -> os.stat_result | None:
        """Return the status of a path without following links; None if it is missing or below a link."""
        with _if_there():
            return status_of(self.at(path))
        return None

    def is_file(self, path: Path | str, size: int | None = None) -> bool:
        """Return whether the path is a regular file, of this size in bytes if one is given."""
        status = self.status(path)
        return status is not None and stat.S_ISREG(status.st_mode) and size in (None, status.st_size)

    def is_folder(self, path: Path | str = "") -> bool:
        """Return whether the path is a folder."""
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def exists(self, path: Path | str) -> bool:
        """Return whether the path exists, even as a broken link."""
        return self.status(path) is not None

    def names(self, path: Path | str = "") -> list[str]:
        """Return the sorted names in a folder; none if the folder is missing."""
        with _if_there(), opened_folder(self.at(path)) as folder:
            return sorted(os.listdir(folder))
        return []

    def folders(self, path: Path | str = "") -> list[str]:
        """Return the sorted names of the folders in a folder; none if the folder is missing."""
        with _if_there(), opened_folder(self.at(path)) as folder, os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        return []

    def numbered(self) -> list[str]:
        """Return the sorted names of the numbered folders: one for each attempt and each `contact` of a client."""
        return [name for name in self.folders() if name.isdecimal() and len(name) >= 4]

    def walk(self, path: Path | str = "") -> Iterator[tuple[str, os.stat_result]]:
        """Yield the path and status of everything below a folder except folders, in any order."""
        folders = [self._relative(path)]
        while folders:
            folder = folders.pop()
            for name, status in self._entries(folder):
                inner = os.path.join(folder, name)
                if stat.S_ISDIR(status.st_mode):
                    folders.append(inner)
                else:
                    yield inner, status

    def _entries(self, path: Path | str) -> list[tuple[str, os.stat_result]]:
        """Return the entries of a folder with their status, links not followed; none if the folder is missing."""
        found = []
        with _if_there(), opened_folder(self.at(path)) as folder, os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another client has just removed it
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
        return found

    def in_the_way(self, path: str) -> str:
        """Return the first part of a path, from the run's folder down, that is not a folder; else the path."""
        part = self._top
        for name in RunPath(self._top, path).steps[1:]:
            part = os.path.join(part, name)
            if os.path.islink(part) or not os.path.isdir(part):
                return part
        return path

    # reading

    def read(self, path: Path | str, most: int = MAX_BYTES) -> bytes:
        """Return the bytes of a file of at most `most` bytes. Raises OSError."""
        return read_regular(self.at(path), most)

    def read_json(self, path: Path | str) -> JsonObject:
        """Return the JSON object in a file; empty if the file is missing, unreadable or not a JSON object."""
        try:
            return parse_object(self.read(path, MAX_JSON))
        except OSError:
            return {}

    def open(
        self,
        path: Path | str,
        mode: Literal["rb", "r+b", "x+b", "wb", "ab"] = "rb",
        buffering: int = -1,
        most: int | None = None,
    ) -> BinaryIO:
        """Open a file of at most `most` bytes, like the built-in `open`. Raises OSError."""
        at = self.at(path)
        descriptor = open_regular(at, _FLAGS[mode])
        if most is not None and os.fstat(descriptor).st_size > most:
            os.close(descriptor)
            raise UnreadableError(at, f"has more than {most} bytes")
        if mode == "wb":
            os.ftruncate(descriptor, 0)
        return cast("BinaryIO", open(descriptor, mode.replace("x", "r"), buffering=buffering))

    # writing

    def make_folder(self, path: Path | str = "") -> None:
        """Make a folder, and those above it up to the run's. Raises OSError."""
        at = RunPath(self._top, self._top)
        for name in self.at(path).steps[1:]:
            inner = at.below(name)
            with _named(inner), opened_folder(at) as above:
                try:
                    os.mkdir(name, dir_fd=above)
                except FileExistsError:
                    if not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
                        raise UnreadableError(inner, "is not a folder") from None
            at = inner

    def write(self, path: Path | str, data: bytes, *, durably: bool = False) -> None:
        """Replace a file atomically, making its folder if needed; with `durably` it is synced to the disk.

        A reader, or a crash, finds the old contents or the new. Raises OSError, and then leaves the old file.
        """
        at = self.at(path)
        name = os.path.basename(at)
        part = f".{name}.{os.getpid()}.{os.urandom(4).hex()}.part"
        self.make_folder(os.path.dirname(self._relative(path)))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _named(at), opened_folder(parent_of(at)) as folder:
            try:
                with open(os.open(part, flags, 0o644, dir_fd=folder), "wb", buffering=0) as file:
                    view = memoryview(data)
                    while view:
                        view = view[file.write(view) :]
                    if durably:
                        os.fsync(file.fileno())
                os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with contextlib.suppress(OSError):  # the first error is the one to report
                    os.unlink(part, dir_fd=folder)
                raise
            if durably:
                os.fsync(folder)

    def rename(self, path: Path | str, to: Path | str) -> None:
        """Move a file or folder to another path of the run, replacing a file at that path. Raises OSError."""
        old, new = self.at(path), self.at(to)
        with _named(new), opened_folder(parent_of(old)) as here, opened_folder(parent_of(new)) as there:
            os.replace(os.path.basename(old), os.path.basename(new), src_dir_fd=here, dst_dir_fd=there)

    def remove(self, path: Path | str) -> None:
        """Remove a path that is not a folder; a missing path is not an error. Raises OSError."""
        at = self.at(path)
        with contextlib.suppress(FileNotFoundError), _named(at), opened_folder(parent_of(at)) as folder:
            os.unlink(os.path.basename(at), dir_fd=folder)

    def remove_empty(self, path: Path | str) -> None:
        """Remove an empty folder. Raises OSError."""
        at = self.at(path)
        with _named(at), opened_folder(parent_of(at)) as folder:
            os.rmdir(os.path.basename(at), dir_fd=folder)

    def remove_tree(self, path: Path | str = "") -> None:
        """Remove a folder and its contents, by default the run's; a missing folder is not an error.

        Raises OSError.
        """
        at = self.at(path)
        with contextlib.suppress(FileNotFoundError), _named(at), opened_folder(parent_of(at)) as folder:
            name = os.path.basename(at)
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise UnreadableError(at, "is not a folder")
            shutil.rmtree(name, dir_fd=folder)

    def touch(self, path: Path | str = "") -> None:
        """Set the modification time of a file or folder to now; a missing path is not an error.

        Raises OSError.
        """
        at = self.at(path)
        with contextlib.suppress(FileNotFoundError), _named(at), opened_folder(parent_of(at)) as folder:
            os.utime(os.path.basename(at), dir_fd=folder, follow_symlinks=False)

    def sync(self, *paths: Path | str) -> None:
        """Sync the contents of these files, and the names in these folders, to the disk. Raises OSError."""
        for path in paths:
            at = self.at(path)
            descriptor = open_folder(at) if self.is_folder(path) else open_regular(at, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def sync_names(self, paths: Iterable[Path | str]) -> None:
        """Sync the names of these files, and of their folders below the run's, to the disk.

        Raises OSError.
        """
        folders = {above for path in paths for above in Path(self._relative(path)).parents}
        self.sync(*map(str, folders))

    # paths

    def at(self, path: Path | str) -> RunPath:
        """Return a checked path for callers that open it themselves, such as a lock.

        Raises UnreadableError for a path that leaves the folder.
        """
        relative = self._relative(path)
        return RunPath(self._top, f"{self._folder}/{relative}" if relative else self._folder)

    def _relative(self, path: Path | str) -> str:
        words = str(path)
        if isinstance(path, Path) and path.is_absolute():
            words = "" if words == self._folder else words.removeprefix(f"{self._folder}/")
        if os.path.isabs(words) or ".." in words.split(os.sep) or "\0" in words:
            raise UnreadableError(str(path), f"is not below {self.folder}")
        return "" if words == "." else words


@contextlib.contextmanager
def _if_there() -> Iterator[None]:
    """Suppress the errors of a path that is missing or leads through a link."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, UnreadableError):
        pass
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise


@contextlib.contextmanager
def _named(path: RunPath) -> Iterator[None]:
    """Put the whole path into an error. Errors of calls relative to a descriptor name only the last part."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, UnreadableError):
            error.filename, error.filename2 = str(path), None
        raise
