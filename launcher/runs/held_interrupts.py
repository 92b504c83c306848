"""Ctrl-C and SIGTERM held back while a run starts, until what follows the run can answer them."""

from __future__ import annotations

import signal
from types import FrameType

_HELD = (signal.SIGINT, signal.SIGTERM)


class HeldInterrupts:
    """Hold back both signals from now until `release`, and remember the first that came."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._before = [signal.signal(number, self._note) for number in _HELD]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._first = self._first or number

    def release(self) -> int | None:
        """Restore the handlers; return the signal that came, None if none did."""
        for number, handler in zip(_HELD, self._before, strict=True):
            signal.signal(number, handler)
        return self._first
