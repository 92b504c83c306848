"""Run a program for a client, and report its output until it and all its descendants have ended.

The client sends "ping" while it listens and "end" to end the program. For a program on a terminal it also
sends "type" with input, and "window" with the size of its window. It receives the program's output, stream by
stream, and finally how the program ended. Nothing is recorded. Everything that the program started ends with
the connection, except work that it handed over (process_lineage.py): all of it descends from this process,
which adopts orphans (on Linux; on macOS an orphan escapes).

If this process is killed, its guard ends the program. The guard is a small process that waits for the death
of this one, and recognizes the program's processes by a token in their variables (on Linux).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from functools import partial
from typing import IO, Any, Callable, Iterator, NamedTuple, Optional, TypedDict

from ..record import strict_json
from ..record.strict_json import JsonObject
from . import process, token_processes
from .login_umask import login_umask
from .terminal import Terminal, Window, become_controlling

TURN_S = 0.05
GRACE_S = 3.0
QUIET_S = 1.0
MARK = token_processes.OF_EXEC
MAX_TYPED = 1 << 16
PIECE = 3900  # bytes: with its header line no more than a writable pipe accepts at once


def main(arguments: list[str]) -> int:
    """Guard a program. When standard input closes, end the processes that carry the token, and return 0."""
    token, variable, grace_s = arguments
    sys.stdin.buffer.read()
    process.end(lambda: token_processes.with_token(token, variable, _parent), "token", float(grace_s))
    return 0


def _parent() -> process.Process | None:
    """Return the parent of this process. Once the agent has died, the parent has also adopted the program."""
    return process.find(os.getppid())


class CommandError(Exception):
    """A program that cannot be started. `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        """Store the code with the message."""
        super().__init__(message)
        self.code = code


class AttendedProgram(NamedTuple):
    """A program to run: its command line, working folder, variables, and the descriptors that it inherits.

    With a `window` it runs on a terminal of that size, with the client's input. Otherwise it has no input.
    """

    words: list[str]
    folder: str
    variables: dict[str, str]
    held: tuple[int, ...] = ()
    window: Optional[Window] = None


class _Started(NamedTuple):
    """A running program, and its terminal if it has one."""

    child: subprocess.Popen[bytes]
    terminal: Optional[Terminal]

    def outputs(self) -> dict[int, int]:
        """Return the descriptors of its output, each with the number of its stream."""
        if self.terminal is not None:
            return {self.terminal.descriptor: 1}
        return {pipe.fileno(): number for number, pipe in self._pipes()}

    def close(self) -> None:
        if self.terminal is not None:
            self.terminal.close()
        for _, pipe in self._pipes():
            pipe.close()

    def _pipes(self) -> list[tuple[int, IO[bytes]]]:
        pipes = ((1, self.child.stdout), (2, self.child.stderr))
        return [(number, pipe) for number, pipe in pipes if pipe is not None]


def reap(child: subprocess.Popen[bytes]) -> int | None:
    """Reap ended children, including adopted orphans. Return the program's wait status once it has ended."""
    for pid, status in process.reap_children():
        if pid == child.pid:
            child.returncode = status  # Popen does not notice this
            return status
    return None


class ProgramEnd(TypedDict):
    """How a program ended: by its exit status or by a signal; the other is None."""

    exit: Optional[int]
    signal: Optional[int]


Attend = Callable[[AttendedProgram, Any], ProgramEnd]


def attend(program: AttendedProgram, wire: Any) -> ProgramEnd:
    """Start a program, and send the client its output until it and all its descendants have ended.

    Raises CommandError, and the wire's exceptions when the client is gone.
    """
    with guarded() as run:
        return run(program, wire)


@contextlib.contextmanager
def guarded() -> Iterator[Attend]:
    """Provide `attend` for several programs, one after another, under one guard.

    The programs get a token in their variables as MARK, so that the guard can end them if this process dies.
    """
    if process.own_descendants():  # for example a keeper, which does not belong to the program
        raise CommandError("busy", "this connection has started something else")
    process.become_subreaper()
    token = "%s.%d" % (os.urandom(16).hex(), os.getpid())
    with start_guard(token, MARK, GRACE_S) as guard:
        try:
            yield partial(_attend, token, guard.pid)
        finally:
            process.end(process.own_descendants, "descendant", 0.0)


def _attend(token: str, guard: int, program: AttendedProgram, wire: Any) -> ProgramEnd:
    started = _start(program, token)
    find_all = partial(_descendants_but, guard)
    try:
        code, number = process.exit_of(_Listening(started, wire, find_all).run())
    finally:
        process.end(find_all, "descendant", GRACE_S)
        started.close()
    return {"exit": code, "signal": number}


def _start(program: AttendedProgram, token: str) -> _Started:
    if program.window is None:
        return _Started(_popen(program, token, subprocess.DEVNULL, subprocess.PIPE), None)
    try:
        terminal = Terminal(program.window)
    except OSError as error:
        raise CommandError("no-terminal", "no terminal can be opened: %s" % error.strerror) from None
    try:
        return _Started(_popen(program, token, terminal.program_end, terminal.program_end), terminal)
    except CommandError:
        terminal.close()
        raise
    finally:
        terminal.give_away()


def _popen(program: AttendedProgram, token: str, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    try:
        with login_umask():
            return subprocess.Popen(
                program.words,
                cwd=program.folder,
                env={**program.variables, MARK: token},
                stdin=stdin,
                stdout=stdout,
                stderr=stdout,
                start_new_session=True,
                preexec_fn=None  # noqa: PLW1509 - this process has one thread
                if program.window is None
                else become_controlling,
                pass_fds=program.held,
            )
    except FileNotFoundError:
        raise CommandError("not-found", "program %s was not found" % program.words[0]) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in a word
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError("not-executable", "%s: %s" % (program.words[0], reason)) from None


def start_guard(token: str, variable: str, grace_s: float) -> subprocess.Popen[bytes]:
    """Start the guard before the program, which will have the token in a variable.

    The guard's input closes when this process ends in any way.
    """
    return subprocess.Popen(
        [sys.executable, "-I", sys.argv[0], "guard", token, variable, str(grace_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _descendants_but(guard: int) -> list[process.Process]:
    """Return every descendant of this process except the guard, which ends last."""
    return [child for child in process.own_descendants() if child.pid != guard]


class _Listening:
    """A program and the client that listens to it.

    Output that the client does not accept yet stays in the pipes.
    """

    def __init__(self, started: _Started, wire: Any, find_all: Callable[[], list[process.Process]]) -> None:
        self._child = started.child
        self._terminal = started.terminal
        self._wire = wire
        self._find_all = find_all
        self._streams = started.outputs()
        self._status: int | None = None
        self._ending: process.ProcessTermination | None = None
        self._is_ended = False

    def run(self) -> int:
        """Return the program's wait status once all its descendants have ended and all output is sent."""
        quiet_since = time.monotonic()
        while True:
            ready = self._wire.wait(list(self._streams), TURN_S)
            self._hear()
            for descriptor in ready or ():
                self._forward(descriptor)
            if ready or ready is None:  # None: the client is busy, so waiting for it is not silence
                quiet_since = time.monotonic()
            if self._status is None:
                self._status = reap(self._child)
            self._end_what_is_left()
            # A process that cannot be ended, or does not belong to the program, may hold a pipe open
            # indefinitely.
            is_sent = not self._streams or time.monotonic() > quiet_since + QUIET_S
            if self._status is not None and self._is_ended and is_sent:
                return self._status

    def _hear(self) -> None:
        while self._wire.has_input(0.0):
            message = strict_json.decode(self._wire.read_line())
            verb = message.get("verb")
            if verb == "end":
                self._ending = self._ending or process.ProcessTermination(
                    self._find_all, "descendant", GRACE_S
                )
            elif self._terminal is not None and verb in ("type", "window"):
                self._take(self._terminal, message)
            elif self._wire.wait([], 0.0) is not None:  # the client accepts an answer
                self._wire.write({"stream": 0})
        if self._terminal is not None:
            self._terminal.hand_over()

    def _take(self, terminal: Terminal, message: JsonObject) -> None:
        """Take input or the new size of the window. Raises EOFError for anything else."""
        try:
            if message["verb"] == "type":
                terminal.type(self._wire.read(min(int(message["size"]), MAX_TYPED)))
            else:
                terminal.resize(Window(int(message["rows"]), int(message["columns"])))
        except (KeyError, TypeError, ValueError):
            raise EOFError from None

    def _forward(self, descriptor: int) -> None:
        piece = self._terminal.read(PIECE) if self._terminal is not None else os.read(descriptor, PIECE)
        if piece:
            self._wire.write({"stream": self._streams[descriptor]}, piece)
        else:
            del self._streams[descriptor]

    def _end_what_is_left(self) -> None:
        if self._status is not None and self._ending is None:
            self._ending = process.ProcessTermination(self._find_all, "descendant", GRACE_S)
        if self._ending is not None and not self._is_ended:
            self._is_ended = self._ending.step()
