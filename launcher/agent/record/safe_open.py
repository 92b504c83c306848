"""Open files below a run: never through a link, regular files only, without blocking.

A job can write into its run's folders, or replace them. So each folder between the run and the file is opened
relative to its parent's descriptor, and a file is used only if its descriptor shows a regular file. A path
outside of runs is a plain `str` and may pass through links.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Iterator, List, Tuple, Union

if TYPE_CHECKING:
    from typing import Self

APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class UnreadableError(OSError):
    """Raised for a file of a run that the agent cannot have written: a link, a pipe, too large, altered."""

    def __init__(self, path: str, why: str) -> None:
        """Keep the path and the reason."""
        super().__init__(errno.EINVAL, why, path)

    @property
    def words(self) -> str:
        """The error as one clause, e.g. `state.json is a pipe`."""
        return "%s %s" % (os.path.basename(os.fspath(self.filename)), self.strerror)


class RunPath(str):
    """A path below a run. Opening it follows no link below the run."""

    __slots__ = ("_run",)
    _run: str

    def __new__(cls, run: str, path: str) -> Self:
        """Make a path that begins with the path of a run's folder."""
        named = super().__new__(cls, path)
        named._run = run
        return named

    def below(self, *names: str) -> RunPath:
        """Return a path below this one."""
        return RunPath(self._run, os.path.join(self, *names))

    @property
    def steps(self) -> Tuple[str, ...]:
        """The names from the run's folder to this path; the first is the run's folder itself."""
        rest = self[len(self._run) :].strip(os.sep)
        return (self._run, *(rest.split(os.sep) if rest else ()))


@contextlib.contextmanager
def opened_folder(path: str) -> Iterator[int]:
    """Yield the descriptor of a folder. Raises OSError; UnreadableError if a link is in its place."""
    descriptor = open_folder(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_folder(path: str) -> int:
    """Return the descriptor of a folder. Raises OSError; UnreadableError if a link is in its place."""
    if not isinstance(path, RunPath):
        return os.open(path, _FOLDER)
    return _descend(path.steps)


def _descend(steps: Tuple[str, ...]) -> int:
    """Return the descriptor of the last of several nested folders; the first is a run's folder."""
    run, *names = steps
    if not names:
        return os.open(run, _FOLDER)
    descriptor = None
    for name in names:
        try:
            first = os.path.join(run, name) if descriptor is None else name
            inner = os.open(first, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
        except OSError as error:
            path = os.path.join(*steps)
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise UnreadableError(path, "lies below %s, which is not a folder" % name) from None
            if error.errno == errno.EACCES:  # the job has changed the folder's mode
                where = "" if name == names[-1] else "is behind %s, which " % name
                raise UnreadableError(path, "%scannot be opened: its mode forbids it" % where) from None
            error.filename = path
            raise
        finally:
            if descriptor is not None:
                os.close(descriptor)
        descriptor = inner
    return inner


def open_up(path: RunPath) -> None:
    """Let the owner list and change a folder below a run, whose job may have forbidden that. Raises OSError.

    The mode is changed through a descriptor, so that no other file can take the folder's place in between.
    Does nothing outside Linux.
    """
    if not hasattr(os, "O_PATH"):
        return
    with opened_folder(parent_of(path)) as parent:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(os.path.basename(path), flags, dir_fd=parent)
    try:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and status.st_mode & 0o700 != 0o700:
            os.chmod("/proc/self/fd/%d" % descriptor, 0o700)
    finally:
        os.close(descriptor)


def parent_of(path: str) -> str:
    """Return the folder of a path. If the path is a RunPath, so is its folder."""
    folder = os.path.dirname(path)
    return RunPath(path.steps[0], folder) if isinstance(path, RunPath) else folder


def open_regular(path: str, flags: int, mode: int = 0o644) -> int:
    """Open a regular file; return its descriptor. Raises OSError; UnreadableError if it is anything else.

    Below a run, a file opened for writing must have one name. Otherwise a job could make a hard link there to
    another file of the same owner.
    """
    try:
        if isinstance(path, RunPath):
            folder = _descend(path.steps[:-1] or path.steps)
            try:
                descriptor = os.open(os.path.basename(path), flags | _NO_LINK, mode, dir_fd=folder)
            finally:
                os.close(folder)
        else:
            descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnreadableError(path, "is a link") from None
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a pipe or a socket without a reader, or a folder
            raise UnreadableError(path, "is not a regular file") from None
        if error.filename is None or error.filename == os.path.basename(path):
            error.filename = path
        raise
    status = os.fstat(descriptor)
    kind = stat.S_IFMT(status.st_mode)
    wrong = None
    if kind != stat.S_IFREG:
        wrong = "is %s" % _KINDS.get(kind, "not a regular file")
    elif isinstance(path, RunPath) and flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
        wrong = "has a second name (a hard link)"
    if wrong is not None:
        os.close(descriptor)
        raise UnreadableError(path, wrong)
    return descriptor


def read_regular(path: str, most: int) -> bytes:
    """Return the bytes of a regular file. Raises OSError; UnreadableError if not regular or too large."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except PermissionError:
        raise UnreadableError(path, "cannot be opened: its mode forbids it") from None
    try:
        pieces: List[bytes] = []
        left = most + 1 if os.fstat(descriptor).st_size <= most else 0
        while left:
            piece = os.read(descriptor, min(left, 1 << 20))
            if not piece:
                return b"".join(pieces)
            left -= len(piece)
            pieces.append(piece)
    finally:
        os.close(descriptor)
    raise UnreadableError(path, "has more than %d bytes" % most)


def read_tail(path: str, most: int, start: int = 0) -> bytes:
    """Return at most `most` bytes from the end of a regular file, none of them before `start`.

    Returns empty bytes if the file is missing or not regular.
    """
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - most))
            return file.read(most)
    except (FileNotFoundError, UnreadableError):
        return b""


def write_all(descriptor: int, data: Union[bytes, bytearray]) -> None:
    """Write bytes to a descriptor, durably."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def replace(path: str, data: bytes, mode: int) -> None:
    """Replace a file at once: readers see all of the old bytes or all of the new ones, also after a crash.

    The temporary file has a name that cannot be guessed, and is opened only if it is new.
    """
    name = os.path.basename(path)
    temporary = "%s.%d.%s.tmp" % (name, os.getpid(), os.urandom(8).hex())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with opened_folder(parent_of(path)) as folder:
        try:
            descriptor = os.open(temporary, flags, mode, dir_fd=folder)
            try:
                write_all(descriptor, data)
            finally:
                os.close(descriptor)
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):  # report the first error
                os.unlink(temporary, dir_fd=folder)
            raise
        os.fsync(folder)


def unlink(path: str) -> None:
    """Remove a file, or a link in its place, but never the link's target. Raises OSError."""
    with opened_folder(parent_of(path)) as folder:
        os.unlink(os.path.basename(path), dir_fd=folder)


def status_of(path: str) -> os.stat_result:
    """Return the status of a path; below a run, follow no link. Raises OSError."""
    with opened_folder(parent_of(path)) as folder:
        return os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=not isinstance(path, RunPath))


def link_regular(source: RunPath, copy: str) -> bool:
    """Hard-link a file; return False if it is behind a link, or if the file systems do not allow it.

    A link's target may be any file of the user. Its contents must be compared, so it is copied.
    """
    try:
        with opened_folder(parent_of(source)) as folder:
            os.link(os.path.basename(source), copy, src_dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    if not os.path.islink(copy):
        return True
    os.unlink(copy)
    return False
