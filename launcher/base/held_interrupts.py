"""Ctrl-C, SIGTERM and SIGHUP held back while a run starts, until what follows the run can answer them.

Signals belong to the main thread: another thread that starts runs holds none back.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Protocol

_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts(Protocol):
    """What holds interrupts back."""

    def release(self) -> int | None:
        """Let them through again; return the signal that came, None if none did."""


class NoInterrupts:
    """Holds nothing back, for a thread other than the main one: no signal interrupts it."""

    def release(self) -> None:
        """Do nothing."""


class HeldInterrupts:
    """Hold back these signals from now until `release`, and remember the first that came."""

    def __init__(self) -> None:
        self.first: int | None = None
        held = [number for number in _HELD if number != signal.SIGHUP or not _is_ignored(number)]
        self._before = [(number, signal.signal(number, self._note)) for number in held]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.first = self.first or number

    def release(self) -> int | None:
        """Restore the handlers; return the signal that came, None if none did."""
        for number, handler in self._before:
            signal.signal(number, handler)
        return self.first


def _is_ignored(number: int) -> bool:
    """Whether a signal is ignored, as `nohup` has SIGHUP."""
    return signal.getsignal(number) == signal.SIG_IGN
