"""Delay Ctrl-C, SIGTERM and SIGHUP while a run starts, until the code that follows the run can handle them.

Only the main thread receives signals: a start in another thread delays none.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Protocol

_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts(Protocol):
    """A holder of delayed interrupts."""

    def release(self) -> int | None:
        """Stop delaying them. Return the signal that arrived, None if none did."""


class NoInterrupts:
    """Delays nothing, for a thread other than the main one: no signal interrupts it."""

    def release(self) -> None:
        """Do nothing."""


class HeldInterrupts:
    """Delay these signals until `release`, and remember the first that arrives."""

    def __init__(self) -> None:
        self.first: int | None = None
        held = [number for number in _HELD if number != signal.SIGHUP or not _is_ignored(number)]
        self._before = [(number, signal.signal(number, self._note)) for number in held]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.first = self.first or number

    def release(self) -> int | None:
        """Restore the handlers. Return the first signal that arrived, None if none did."""
        for number, handler in self._before:
            signal.signal(number, handler)
        return self.first


def _is_ignored(number: int) -> bool:
    """Whether a signal is ignored, as SIGHUP is under `nohup`."""
    return signal.getsignal(number) == signal.SIG_IGN
