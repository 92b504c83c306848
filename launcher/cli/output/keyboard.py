"""The terminal that `launch` runs in, handed to a program on a host: each key goes there, and nothing is shown by it here."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator

from launcher.errors import UsageError
from launcher.transport.agent_input import Window

PIECE = 4096
_AS_BEFORE = b"\x1b[?1049l\x1b[?2004l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?25h\x1b[0m"
"""The main screen, no bracketed paste, no mouse, a cursor, no colour: what a program that was cut off has left set."""


class LocalKeyboard:
    """Standard input and the window of standard output. Use it within `raw`."""

    def __init__(self) -> None:
        """Raises UsageError if either is not a terminal."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError(
                "a shell needs a terminal\n  next   launch exec RUN -- COMMAND     which runs one command, without"
            )
        self.kind = os.environ.get("TERM", "dumb")
        self._input = sys.stdin.fileno()
        self._output = sys.stdout.fileno()

    def window(self) -> Window:
        """Return the size of the window."""
        size = os.get_terminal_size(self._output)
        return Window(size.lines, size.columns)

    def read(self, wait_s: float) -> bytes:
        """Return what was typed, waiting up to `wait_s` seconds for it."""
        if not select.select([self._input], [], [], wait_s)[0]:
            return b""
        typed = os.read(self._input, PIECE)
        if not typed:  # hung up
            time.sleep(wait_s)
        return typed

    def show(self, _stream: int, data: bytes) -> None:
        """Write what the program shows, as it is."""
        while data:
            data = data[os.write(self._output, data) :]

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        """Hand on every key, Ctrl-C too; afterwards the terminal is as it was."""
        before = termios.tcgetattr(self._input)
        tty.setraw(self._input)
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                os.write(self._output, _AS_BEFORE + b"\r\n")
            raise
        finally:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._input, termios.TCSADRAIN, before)
