"""A command that was handed over (`handing_over.py`), in the fork that runs it: what came with it, and what makes the fork like its process."""

from __future__ import annotations

import array
import contextlib
import io
import os
import re
import signal
import socket
import sys
import threading
from typing import NamedTuple, NoReturn

import launcher
from launcher import user_sockets
from launcher.cli import handing_over
from launcher.cli.likeness import traits

SAID_S = 0.5
"""How long a client may take to say what it wants."""
MOST_SAID = 8 << 20
"""Bytes of a command: a system takes 2 MB of words and variables by default."""
PIPE = 4096
"""Bytes that a pipe takes in one piece, whoever else writes to it."""
_SIZE = 4
_SETTLED = re.compile(
    rb"(?:HOME|TZ|LANG|LANGUAGE|LC_.*|PYTHON.*|TYPER_.*|PYDANTIC_.*|INVOKE_.*)=.*", re.DOTALL
)
"""The variables that count while Python starts and modules load: in a fork it is too late for others."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGQUIT)
"""What a shell, or `nohup`, may have a command ignore."""


class TakenCommand:
    """A command whose process waits for us at the other end of a stream."""

    def __init__(self, stream: socket.socket, learned: int) -> None:
        """Take it, and make this process like its own. Raises OSError or ValueError if it cannot be taken, and then it has not begun."""
        self._stream = stream
        self._learned = learned
        stream.settimeout(SAID_S)
        pid = user_sockets.check_peer(stream)
        said = _receive(stream)
        if not _fits(said, pid):
            stream.sendall(b"no\n")
            raise ValueError("the command was typed in a process that is not like ours")
        stream.sendall(b"%d\n" % os.getpid())
        if stream.recv(16) != handing_over.GO:
            raise ConnectionResetError("the command runs where it was typed")
        stream.settimeout(None)
        self._known = frozenset(sys.modules)
        _become(said, pid)
        threading.Thread(target=self._end_with_client, daemon=True).start()

    def leave(self, code: int) -> NoReturn:
        """Say the exit code and which modules this command had to load, and end."""
        with contextlib.suppress(OSError):
            self._stream.sendall(b"%d\n" % code)
        names = b""
        for name in sorted(sys.modules.keys() - self._known):
            more = f"{name}\n".encode()
            names += more if len(names) + len(more) <= PIPE else b""
        with contextlib.suppress(OSError):
            os.write(self._learned, names)
        os._exit(code)

    def _end_with_client(self) -> None:
        """End at once when the process has gone in which the command was typed: it was killed."""
        with contextlib.suppress(OSError):
            self._stream.recv(1)
        os.kill(os.getpid(), signal.SIGKILL)


class _Said(NamedTuple):
    """What came of a command: which Python and launcher it was typed for, its words, its variables as `NAME=value`, its open files."""

    python: bytes
    package: bytes
    words: list[bytes]
    variables: list[bytes]
    descriptors: list[int]


def _receive(stream: socket.socket) -> _Said:
    """Read what was said of a command. Raises OSError or ValueError."""
    item = array.array("i").itemsize
    head, rights, _, _ = stream.recvmsg(_SIZE, socket.CMSG_SPACE(handing_over.DESCRIPTORS * item))
    numbers = array.array("i")
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(data[: len(data) // item * item])
    left = int.from_bytes(head, "big")
    if len(numbers) != handing_over.DESCRIPTORS or len(head) != _SIZE or left > MOST_SAID:
        raise ValueError("a command is malformed")
    pieces = []
    while left:
        piece = stream.recv(left)
        if not piece:
            raise ConnectionResetError("the command's process has gone")
        pieces.append(piece)
        left -= len(piece)
    python, package, count, *parts = b"".join(pieces).split(b"\0")[:-1]
    return _Said(python, package, parts[: int(count)], parts[int(count) :], list(numbers))


def _fits(said: _Said, pid: int) -> bool:
    """Whether the command would do the same here as where it was typed."""
    ours = [name + b"=" + value for name, value in os.environb.items()]
    return (
        (said.python, said.package) == (os.fsencode(sys.prefix), os.fsencode(launcher.__file__))
        and _settled(said.variables) == _settled(ours)
        and traits(pid) == traits(os.getpid())
    )


def _settled(variables: list[bytes]) -> set[bytes]:
    return {one for one in variables if _SETTLED.fullmatch(one)}


def _become(said: _Said, pid: int) -> None:
    """Take over a command's words, variables, working directory, open files, and the signals that it ignores."""
    os.setpgid(0, 0)  # so that it can be stopped: its parent is of another group
    *files, folder = said.descriptors
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.fchdir(folder)
    os.close(folder)
    sys.argv[1:] = [os.fsdecode(word) for word in said.words]
    os.environb.clear()
    os.environb.update(_pair(one) for one in said.variables)
    ignored = _ignored(pid)
    for one in _SIGNALS:
        usual = signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL
        signal.signal(one, signal.SIG_IGN if one in ignored else usual)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _opened(number, getattr(sys, f"__{name}__"))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _pair(variable: bytes) -> tuple[bytes, bytes]:
    name, _, value = variable.partition(b"=")
    return name, value


def _ignored(pid: int) -> set[int]:
    """Return the signals that a process ignores."""
    with open(f"/proc/{pid}/status") as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn:"))
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def _opened(number: int, like: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream on a descriptor as Python opens it when it starts; `like` was opened by it, with the same variables."""
    is_input = number == 0
    raw = io.FileIO(number, "rb" if is_input else "wb", closefd=False)
    is_raw = isinstance(like.buffer, io.RawIOBase)  # PYTHONUNBUFFERED is set
    buffer = raw if is_raw else io.BufferedReader(raw) if is_input else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        encoding=like.encoding,
        errors=like.errors,
        newline=None if is_input else "\n",
        line_buffering=not is_input and (number == 2 or raw.isatty()),
        write_through=like.write_through,
    )
