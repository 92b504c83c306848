"""A process that outlives this command and serves the next ones: its start, and its socket.

It inherits no secrets and no open files from this command. A marker file exists from before its start until it
listens, so that `launch hosts --close` misses no such process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.transport import persistent_socket

ALIVE_S = 2.0
"""The seconds that a process may take to accept a connection before it counts as busy."""

_VARIABLES = re.compile(
    "HOME|TZ|LANG|LANGUAGE|LC_(?:ALL|ADDRESS|COLLATE|CTYPE|IDENTIFICATION|MEASUREMENT|MESSAGES|MONETARY|NAME"
    "|NUMERIC|PAPER|TELEPHONE|TIME)|PYTHON[A-Z0-9]+|PYTHON_(?:BASIC_REPL|COLORS|CONTEXT_AWARE_WARNINGS|CPU_COUNT"
    "|DISABLE_REMOTE_DEBUG|FROZEN_MODULES|GIL|HISTORY|JIT|PERF_JIT_SUPPORT|PRESITE|THREAD_INHERIT_CONTEXT|TLBC)"
    "|LD_(?:AUDIT|BIND_NO[TW]|DEBUG|DEBUG_OUTPUT|DYNAMIC_WEAK|HWCAP_MASK|LIBRARY_PATH|ORIGIN_PATH|PREFER_MAP_32BIT_EXEC"
    "|PRELOAD|PROFILE|PROFILE_OUTPUT|SHOW_AUXV|VERBOSE|WARN)|GLIBC_TUNABLES|MALLOC_(?:ARENA_MAX|ARENA_TEST|CHECK_"
    "|MMAP_MAX_|MMAP_THRESHOLD_|PERTURB_|TOP_PAD_|TRIM_THRESHOLD_)"
    "|TYPER_(?:STANDARD_TRACEBACK|USE_RICH)|PYDANTIC_DISABLE_PLUGINS|INVOKE_DEBUG"
    "|USER|LOGNAME|SHELL|PATH|TMPDIR|SSH_AUTH_SOCK|VIRTUAL_ENV"
    "|XDG_(?:RUNTIME_DIR|(?:CACHE|CONFIG|DATA|STATE)_HOME|(?:CONFIG|DATA)_DIRS)"
)
"""The names of the variables that the process inherits. Any other variable may hold a secret.

They are variables of the C library (ld.so(8), mallopt(3)), Python, its libraries, and the user.
"""


def begin(program: str, name: str, data: bytes, variables: Mapping[str, str]) -> None:
    """Start one of launcher's programs, with a name and its marker's path as arguments and `data` as input.

    Return without waiting.
    """
    kept = {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}
    with contextlib.suppress(OSError), persistent_socket.new_mark() as (mark, descriptor):
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, name, str(mark)],
            pass_fds=[descriptor],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**kept, **variables},
            start_new_session=True,
        )
        process.returncode = 0  # no process waits for it
        os.write(descriptor, json.dumps([process.pid, name]).encode())
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with process.stdin:
            process.stdin.write(data)


class Listener:
    """A socket at which only this process listens."""

    def __init__(self, path: Path, mark: Path) -> None:
        """Listen at a path, and remove the marker.

        Raises OSError if the path is taken or the marker is missing.
        """
        self._path = path
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            with _locked(path.parent):
                _sweep()
                umask = os.umask(0o177)
                try:
                    self.socket.bind(str(path))
                finally:
                    os.umask(umask)
                self.socket.listen(64)
                self._own = path.stat().st_ino
        except BaseException:
            self.socket.close()
            raise
        try:
            mark.unlink()  # now `hosts --close` finds the socket; if it has removed the marker, this fails
        except OSError:
            self.close()
            raise

    def is_ours(self) -> bool:
        """Whether the path still leads to this socket. False once the socket was removed."""
        try:
            return self._path.stat().st_ino == self._own
        except OSError:
            return False

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        with _locked(self._path.parent):
            if self.is_ours():
                self._path.unlink()
        self.socket.close()


def sweep() -> None:
    """Remove the sockets and markers of killed processes. Raises OSError if the folder is missing."""
    with _locked(persistent_socket.socket_folder()):
        _sweep()


def _sweep() -> None:
    for path in persistent_socket.sockets():
        if not is_answered(path):
            path.unlink(missing_ok=True)
    for mark in persistent_socket.marks():
        if not persistent_socket.is_alive(mark):
            mark.unlink(missing_ok=True)


def is_answered(path: Path) -> bool:
    """Whether a process listens at a socket."""
    try:
        persistent_socket.connect(path, ALIVE_S).close()
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except OSError:
        pass  # its process is busy, or another user owns it
    return True


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. One process at a time creates or removes sockets in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
