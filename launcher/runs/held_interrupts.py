"""Ctrl-C, SIGTERM and SIGHUP held back while a run starts, until what follows the run can answer them."""

from __future__ import annotations

import signal
from types import FrameType

_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HeldInterrupts:
    """Hold back these signals from now until `release`, and remember the first that came."""

    def __init__(self) -> None:
        self._first: int | None = None
        held = [number for number in _HELD if number != signal.SIGHUP or not _is_ignored(number)]
        self._before = [(number, signal.signal(number, self._note)) for number in held]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._first = self._first or number

    def release(self) -> int | None:
        """Restore the handlers; return the signal that came, None if none did."""
        for number, handler in self._before:
            signal.signal(number, handler)
        return self._first


def _is_ignored(number: int) -> bool:
    """Whether a signal is ignored, as `nohup` has SIGHUP."""
    return signal.getsignal(number) == signal.SIG_IGN
