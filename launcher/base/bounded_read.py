"""Read a file that other users may have written: it may be a device, a pipe, or endless."""

from __future__ import annotations

import errno
import os
import stat

from launcher.errors import BadFileError

_PIPES = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""The names of files that a shell opens for a command, as in `--env-file <(…)`."""


def read_bounded(
    path: str | os.PathLike[str], most: int, *, cuts: bool = False, takes_pipe: bool = False
) -> bytes:
    """Return the bytes of a regular file, which may be reached by a link. Refuse other files without blocking.

    `most` is the largest number of bytes. A larger file is truncated if `cuts` is set. `takes_pipe`: also
    read a pipe that the shell has opened for this command. Raises OSError for a file that cannot be opened,
    BadFileError for one that is not regular or too large.
    """
    name = os.fspath(path)
    if takes_pipe and name.startswith(_PIPES):
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    else:
        # A device is not even opened: that may have side effects.
        _check_regular(os.stat(name), name)
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not (takes_pipe and name.startswith(_PIPES)):
            _check_regular(os.fstat(descriptor), name)
        data = bytearray()
        while len(data) <= most and (piece := file.read(most + 1 - len(data))):
            data += piece
    if len(data) > most and not cuts:
        raise BadFileError(f"{name}: is larger than {_size(most)}")
    return bytes(data[:most])


def _check_regular(status: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(status.st_mode):
        raise BadFileError(f"{name}: is not a regular file")


def _size(count: int) -> str:
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count:,} bytes"
