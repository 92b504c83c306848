"""Attend to a program for a client: report what it prints until it and everything it started have ended.

The client sends "ping" while it listens and "end" when it has seen enough. It receives the program's output, stream by
stream, and finally how the program ended. Nothing of this is recorded, and nothing that the program started outlives the
connection: all of it, in whichever session, is below this process, which adopts its orphans (Linux; on macOS an orphan
escapes).

If this process is killed, its guard ends the program: a small process that waits for exactly that, and recognizes what it
may end by a token of this one program in their variables (Linux).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from typing import Any, Callable

from ..record import strict_json
from . import process

TURN_S = 0.05
GRACE_S = 3.0
QUIET_S = 1.0
MARK = "LAUNCH_EXEC"
PIECE = 3900  # bytes: with its line no more than what a pipe that can be written takes at once


def main(arguments: list[str]) -> int:
    """Guard a command: wait for the end of whoever holds our standard input, then end what carries its token; return 0."""
    sys.stdin.buffer.read()
    process.end(lambda: process.with_token(arguments[0], MARK), "token", GRACE_S)
    return 0


class CommandError(Exception):
    """A command that cannot be started; its code is a word for programs, its text for people."""

    def __init__(self, code: str, message: str) -> None:
        """Hold both."""
        super().__init__(message)
        self.code = code


def reap(child: subprocess.Popen[bytes]) -> int | None:
    """Collect ended children, adopted orphans too; return the command's wait status once it has ended."""
    for pid, status in process.reap_children():
        if pid == child.pid:
            child.returncode = status  # reaped here, behind Popen's back
            return status
    return None


def attend(start: Callable[[str], subprocess.Popen[bytes]], wire: Any) -> dict[str, Any]:
    """Start a program with pipes for its output and tell the client what it prints, until it has ended with all below it.

    `start` gets the token that the program must carry in its environment as MARK, so that a guard can end it when this
    process dies. Return {"exit", "signal"}, one of them None. Raises as `execute` does.
    """
    if process.own_descendants():  # a keeper, say: it must not be taken for one of the command's
        raise CommandError("busy", "this connection has started something else")
    process.become_subreaper()
    token = os.urandom(16).hex()
    with _start_guard(token) as guard:
        child = start(token)
        find_all = partial(_descendants_but, guard.pid)
        try:
            code, number = process.exit_of(_Listening(child, wire, find_all).run())
        finally:
            process.end(find_all, "descendant", GRACE_S)
            process.end(process.own_descendants, "descendant", 0.0)
            for pipe in (child.stdout, child.stderr):
                assert pipe is not None  # noqa: S101 - asked for with PIPE
                pipe.close()
    return {"exit": code, "signal": number}


def _start_guard(token: str) -> subprocess.Popen[bytes]:
    """Start the guard of a command that is about to begin. Its input ends with us, however we end."""
    return subprocess.Popen(
        [sys.executable, "-I", sys.argv[0], "guard", token],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _descendants_but(guard: int) -> list[process.Process]:
    """Return every process below this one but the guard, which stays to the last."""
    return [one for one in process.own_descendants() if one.pid != guard]


class _Listening:
    """A command and the client that listens to it. What the client does not take yet stays in the command's pipes."""

    def __init__(
        self, child: subprocess.Popen[bytes], wire: Any, find_all: Callable[[], list[process.Process]]
    ) -> None:
        assert child.stdout is not None  # noqa: S101 - asked for with PIPE
        assert child.stderr is not None  # noqa: S101 - likewise
        self._child = child
        self._wire = wire
        self._find_all = find_all
        self._streams = {child.stdout.fileno(): 1, child.stderr.fileno(): 2}
        self._status: int | None = None
        self._ending: process.Ending | None = None
        self._is_ended = False

    def run(self) -> int:
        """Return the command's wait status, once it has ended with all that it started and all was told."""
        quiet_since = time.monotonic()
        while True:
            ready = self._wire.wait(list(self._streams), TURN_S)
            self._hear()
            for descriptor in ready or ():
                self._tell(descriptor)
            if ready or ready is None:  # None: the client is busy, and what waits for it is not silence
                quiet_since = time.monotonic()
            if self._status is None:
                self._status = reap(self._child)
            self._end_what_is_left()
            # A process that cannot be ended, or one that is not ours, may hold a pipe open for ever.
            is_told = not self._streams or time.monotonic() > quiet_since + QUIET_S
            if self._status is not None and self._is_ended and is_told:
                return self._status

    def _hear(self) -> None:
        while self._wire.has_input(0.0):
            if strict_json.decode(self._wire.read_line()).get("verb") == "end":
                self._ending = self._ending or process.Ending(self._find_all, "descendant", GRACE_S)
            elif self._wire.wait([], 0.0) is not None:  # there is room for an answer
                self._wire.write({"stream": 0})

    def _tell(self, descriptor: int) -> None:
        piece = os.read(descriptor, PIECE)
        if piece:
            self._wire.write({"stream": self._streams[descriptor]}, piece)
        else:
            del self._streams[descriptor]

    def _end_what_is_left(self) -> None:
        if self._status is not None and self._ending is None:
            self._ending = process.Ending(self._find_all, "descendant", GRACE_S)
        if self._ending is not None and not self._is_ended:
            self._is_ended = self._ending.step()
