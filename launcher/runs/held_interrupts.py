"""Ctrl-C and SIGTERM held back while a run starts, until what follows the run can answer them."""

from __future__ import annotations

import signal
import threading
from types import FrameType

_HELD = (signal.SIGINT, signal.SIGTERM)


class HeldInterrupts:
    """Hold back both signals from now until `release`, and remember the first that came. In another thread nothing is held."""

    def __init__(self) -> None:
        self.first: int | None = None
        is_main = threading.current_thread() is threading.main_thread()  # which alone may, and gets them all
        self._before = [signal.signal(number, self._note) for number in _HELD] if is_main else []

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.first = self.first or number

    def forget(self) -> None:
        """Forget the signal that came."""
        self.first = None

    def release(self) -> int | None:
        """Restore the handlers; return the signal that came, None if none did."""
        for number, handler in zip(_HELD, self._before, strict=bool(self._before)):
            signal.signal(number, handler)
        return self.first
