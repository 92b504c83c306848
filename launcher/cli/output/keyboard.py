"""The local terminal in raw mode, for a program on a host: every key is passed on, and none is echoed."""

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
"""Escape sequences that undo the terminal modes of an interrupted program.

Main screen, bracketed paste off, mouse reports off, cursor on, colours off.
"""


class LocalKeyboard:
    """Standard input, and the window on standard output. Use it within `raw`."""

    def __init__(self) -> None:
        """Raises UsageError if either is not a terminal."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError(
                "a shell needs a terminal\n  next   launch exec RUN -- COMMAND     runs one command without a terminal"
            )
        self.kind = os.environ.get("TERM", "dumb")
        self._input = sys.stdin.fileno()
        self._output = sys.stdout.fileno()

    def window(self) -> Window:
        """Return the window's size in lines and columns."""
        size = os.get_terminal_size(self._output)
        return Window(size.lines, size.columns)

    def read(self, wait_s: float) -> bytes:
        """Return the bytes typed, after a wait of at most `wait_s` seconds."""
        if not select.select([self._input], [], [], wait_s)[0]:
            return b""
        typed = os.read(self._input, PIECE)
        if not typed:  # end of input: the terminal hung up
            time.sleep(wait_s)
        return typed

    def show(self, _stream: int, data: bytes) -> None:
        """Write the program's output unchanged."""
        while data:
            data = data[os.write(self._output, data) :]

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        """Put the terminal into raw mode for a block: every key, Ctrl-C too, becomes input. Restore its mode afterwards."""
        before = termios.tcgetattr(self._input)
        tty.setraw(self._input)
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                os.write(self._output, _AS_BEFORE + b"\r\n")
            raise
        finally:
            with contextlib.suppress(termios.error):  # the terminal may be closed
                termios.tcsetattr(self._input, termios.TCSADRAIN, before)
