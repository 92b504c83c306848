"""A command that was handed over (`handing_over.py`), in the fork that runs it: what came with it, and what makes the fork like its process."""

from __future__ import annotations

import array
import atexit
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
from launcher.cli import early, handing_over
from launcher.cli.likeness import traits
from launcher.hosts import background, held, held_socket

SAID_S = 0.5
"""How long a client may take to say what it wants."""
MOST_SAID = 8 << 20
"""Bytes of a command: a system takes 2 MB of words and variables by default."""
TAKE, BEGIN = b"t", b"b"
"""What a fork hears: with the first comes the stream of a command, and after the second that may begin."""
PIPE = 4096
"""Bytes that a pipe takes in one piece, also with several writers."""
_SIZE = 4
_SETTLED = re.compile(rb"(?:%s)=.*" % background.STARTING.encode(), re.DOTALL)
"""In a fork it is too late for another value of these."""
_UNWRITTEN = 120
"""Python's exit code if it cannot write at its end what is left to write."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGQUIT)
"""What a shell, or `nohup`, may have a command ignore."""


class TakenCommand:
    """A command whose process waits for us at the other end of a stream."""

    def __init__(self, given: socket.socket, learned: int) -> None:
        """Wait until the command is given to us, take it, and make this process like its own.

        What is learned from it is written to a pipe. Raises OSError or ValueError if it cannot be taken, and then it has not begun.
        """
        stream = self._stream = _wait_for_stream(given)
        self._learned = learned
        self._is_over = False
        os.setpgid(0, 0)  # so that Ctrl-Z can stop it: its parent is of another group
        stream.settimeout(SAID_S)
        pid = user_sockets.check_peer(stream)
        said = _receive(stream)
        if not (_fits(said, pid) and _may_begin(given)):
            stream.sendall(b"no\n")
            raise ValueError("the command has to run where it was typed")
        stream.sendall(b"%d\n" % os.getpid())
        stream.settimeout(None)  # its process begins at once, or ends
        descriptors = _take_files(stream)
        self._known = frozenset(sys.modules)
        _become(said, descriptors, pid)
        threading.Thread(target=self._end_with_client, daemon=True).start()
        atexit.register(self._leave_unusually)

    def leave(self, code: int) -> NoReturn:
        """Say the exit code and which modules this command had to load, and end."""
        self._is_over = True
        with contextlib.suppress(OSError):
            self._stream.sendall(b"%d\n" % (code & 0xFF))
        names = b"\n"  # which says that the command is over
        for name in sorted(sys.modules.keys() - self._known):
            more = f"{name}\n".encode()
            names += more if len(names) + len(more) <= PIPE else b""
        with contextlib.suppress(OSError):
            os.write(self._learned, names)
        os._exit(code)

    def _leave_unusually(self) -> None:
        """Leave with Python's exit code after an error that nobody caught, or if not all could be written."""
        self.leave(1 if hasattr(sys, "last_type") else _UNWRITTEN)

    def _end_with_client(self) -> None:
        """End at once when the process has gone in which the command was typed: it was killed."""
        with contextlib.suppress(OSError):
            self._stream.recv(1)
        if not self._is_over:
            os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_stream(given: socket.socket) -> socket.socket:
    """Wait for a command, and return the stream to the process in which it was typed. Raises OSError if none comes any more."""
    word, descriptors, _, _ = socket.recv_fds(given, 1, 1)
    if word != TAKE or len(descriptors) != 1:
        raise ConnectionResetError("this fork is not needed")
    return socket.socket(fileno=descriptors[0])


def _may_begin(given: socket.socket) -> bool:
    """Whether the process that has loaded all finds that it is still what is installed."""
    with given:
        return given.recv(1) == BEGIN


class _Said(NamedTuple):
    """What was said of a command: which Python and launcher it was typed for, its words, and its variables as `NAME=value`."""

    python: bytes
    package: bytes
    words: list[str]
    variables: list[bytes]


def _receive(stream: socket.socket) -> _Said:
    """Read what was said of a command. Raises OSError or ValueError."""
    size = int.from_bytes(held_socket.exactly(stream, _SIZE), "big")
    if size > MOST_SAID:
        raise ValueError("a command is too long")
    python, package, count, *parts = held_socket.exactly(stream, size).split(b"\0")[:-1]
    words = [os.fsdecode(word) for word in parts[: int(count)]]
    return _Said(python, package, words, parts[int(count) :])


def _take_files(stream: socket.socket) -> list[int]:
    """Return the descriptors that come with the word to begin. Raises OSError if that does not come: then the command runs where it was typed."""
    item = array.array("i").itemsize
    word, rights, _, _ = stream.recvmsg(1, socket.CMSG_SPACE(handing_over.DESCRIPTORS * item))
    numbers = array.array("i")
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(data[: len(data) // item * item])
    if word != handing_over.GO or len(numbers) != handing_over.DESCRIPTORS:
        raise ConnectionResetError("the command runs where it was typed")
    return list(numbers)


def _fits(said: _Said, pid: int) -> bool:
    """Whether the command would do the same here as where it was typed."""
    ours = [name + b"=" + value for name, value in os.environb.items()]
    return (
        (said.python, said.package) == (os.fsencode(sys.prefix), os.fsencode(launcher.__file__))
        and _settled(said.variables) == _settled(ours)
        and traits(pid) == traits(os.getpid())
        and _reaches_held(said.words, pid)
    )


def _reaches_held(words: list[str], pid: int) -> bool:
    """Whether a host that the command names is held: to log in anew may need the terminal of the process in which it was typed."""
    try:
        named = early.named_host(words, f"/proc/{pid}/cwd")
    except (OSError, ValueError, RecursionError):
        return False
    return named is None or named in {state.host for state in held.states()}


def _settled(variables: list[bytes]) -> set[bytes]:
    return {one for one in variables if _SETTLED.fullmatch(one)}


def _become(said: _Said, descriptors: list[int], pid: int) -> None:
    """Take over a command's words, variables, working directory, open files, and the signals that it ignores.

    Neither process leaves a core dump; the limit of its login is among the variables.
    Ctrl-C ends this process without a word until `command_process.main` hears it.
    """
    *files, folder = descriptors
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.fchdir(folder)
    os.close(folder)
    sys.argv[1:] = said.words
    os.environb.clear()
    os.environb.update(_pair(one) for one in said.variables)
    ignored = _ignored(pid)
    for one in _SIGNALS:
        signal.signal(one, signal.SIG_IGN if one in ignored else signal.SIG_DFL)
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
