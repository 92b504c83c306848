"""Limits a burst of lines in the terminal: the first lines, a count of the skipped lines, and the last ones."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

MAX_LINES = 40
LAST_LINES = 8
EVERY_S = 1.0


class LineThrottle:
    """Passes at most `MAX_LINES` lines each `EVERY_S` seconds. Of the rest, it keeps the last `LAST_LINES` and counts the others."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._shown = 0
        self._held: deque[str] = deque(maxlen=LAST_LINES)
        self._skipped = 0

    def take(self, lines: Sequence[str], more: str) -> list[str]:
        """Return the lines to show now. `more` is the command that shows all lines."""
        now = time.monotonic()
        shown = self.release(more) if now - self._since_s >= EVERY_S else []
        if now - self._since_s >= EVERY_S:
            self._since_s, self._shown = now, len(shown)
        room = 0 if self._held else max(0, MAX_LINES - self._shown)
        self._shown += len(lines[:room])
        rest = lines[room:]
        self._skipped += max(0, len(self._held) + len(rest) - LAST_LINES)
        self._held.extend(rest)
        return [*shown, *lines[:room]]

    def release(self, more: str) -> list[str]:
        """Return the count of skipped lines and the held lines, and clear both."""
        lines = self.pending(more)
        self._held.clear()
        self._skipped = 0
        return lines

    def pending(self, more: str) -> list[str]:
        """Return the count of skipped lines and the held lines, and keep both."""
        count = [f"… {self._skipped:,} more lines   {more} shows all"] if self._skipped else []
        return [*count, *self._held]
