"""A pseudo-terminal for an interactive program, between the client's input and the program's output."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import termios
from typing import NamedTuple

MAX_UNREAD = 1 << 20
"""The most bytes of input that may wait for the program. Further input is lost, as on any terminal."""


class Window(NamedTuple):
    """The size of a terminal, in characters."""

    rows: int = 24
    columns: int = 80


class Terminal:
    """Both ends of a pseudo-terminal. This process closes the program's end once the program has it."""

    def __init__(self, window: Window) -> None:
        """Open both ends. Raises OSError."""
        self.descriptor, self.program_end = os.openpty()
        os.set_blocking(self.descriptor, False)
        self._unread = b""
        self.resize(window)

    def resize(self, window: Window) -> None:
        """Set the size of the window; the program gets SIGWINCH."""
        size = struct.pack("HHHH", *(min(max(side, 1), 0xFFFF) for side in window), 0, 0)
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, size)

    def type(self, data: bytes) -> None:
        """Take input, and pass the program as much as it accepts."""
        self._unread += data[: MAX_UNREAD - len(self._unread)]
        self.hand_over()

    def hand_over(self) -> None:
        """Pass the program more of the earlier input."""
        try:
            while self._unread and select.select([], [self.descriptor], [], 0.0)[1]:
                self._unread = self._unread[os.write(self.descriptor, self._unread) :]
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EIO:  # no process has the program's end open any more
                raise
            self._unread = b""

    def read(self, size: int) -> bytes:
        """Return the program's output; empty once no process has the program's end open any more."""
        try:
            return os.read(self.descriptor, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""

    def give_away(self) -> None:
        """Close the program's end in this process, once the program has it."""
        os.close(self.program_end)

    def close(self) -> None:
        """Close this end, which hangs up the program's session."""
        os.close(self.descriptor)


def become_controlling() -> None:
    """Make standard input the controlling terminal of this process, the leader of a new session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
