"""A terminal of a given size, with a program in it and what a person would see: a real pty, read by an emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

import pyte

LIMIT_S = 60.0


class Screen:
    """A program on a pty of its own. `raw` is all that it has written (and, if it `echoes`, what was typed), `lines()` what is on the screen now."""

    def __init__(self, words, env, cwd=None, width=80, height=30, *, echoes=False):
        self.emulator = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self.emulator)
        self.raw = b""
        self._ours, theirs = pty.openpty()
        if not echoes:
            settings = termios.tcgetattr(theirs)
            settings[3] &= ~termios.ECHO
            termios.tcsetattr(theirs, termios.TCSANOW, settings)
        self.resize(width, height)
        self.process = subprocess.Popen(
            words, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs, process_group=0
        )
        os.close(theirs)

    def __enter__(self):
        """Watch the program; it ends with the block at the latest."""
        return self

    def __exit__(self, *_):
        """End the program, if it has not ended."""
        self.process.kill()
        self.process.wait(timeout=LIMIT_S)
        os.close(self._ours)

    def lines(self):
        """Return the lines of the screen, without those that are empty at its end."""
        return "\n".join(line.rstrip() for line in self.emulator.display).rstrip().split("\n")

    def until(self, is_there):
        """Read until `is_there(lines)`; return the lines. Fails after a minute, or if the program ends before."""
        ends = time.monotonic() + LIMIT_S
        while not is_there(self.lines()):
            assert time.monotonic() < ends, "\n".join(self.lines())
            assert self._read() is not False, "\n".join(self.lines())
        return self.lines()

    def resize(self, width, height):
        """Give the window another size."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.emulator.resize(height, width)

    def settings(self):
        """Return the terminal's settings, as `stty -a` prints them."""
        return termios.tcgetattr(self._ours)

    def type(self, text):
        """Type at the terminal."""
        os.write(self._ours, text.encode())

    def to_the_end(self):
        """Read until the program has ended; return the lines."""
        while self._read() is not False:
            pass
        self.process.wait(timeout=LIMIT_S)
        return self.lines()

    def _read(self):
        """Read what is there; return False at the end."""
        if not select.select([self._ours], [], [], 0.2)[0]:
            return None
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # how Linux says that the other end is closed
            return False
        self.raw += data
        self._stream.feed(data)
        return True
