"""How long a run has been without news, and what to say about it."""

from __future__ import annotations

import time

from launcher.cli.figures import clock_text
from launcher.cli.log_text import readable
from launcher.runs.mirror import News

QUIET_S = 10.0
LONGEST_S = 600.0


class Silence:
    """The time since a run last printed or measured something.

    A line about it is due after 10 s, 20 s, 40 s and so on, and then every ten minutes.
    """

    def __init__(self) -> None:
        self.last_line = ""
        self._began = time.time()
        self._heard_s = time.monotonic()
        self._due_after_s = QUIET_S

    def begin(self, began: float | None) -> None:
        """Begin to listen to a run; `began` is the host's clock at its first event, if that is known."""
        self._began = time.time() if began is None else began
        self._heard_s = time.monotonic()

    def hear(self, news: News) -> None:
        """Notice whether an answer has brought something to show."""
        start = readable(news.unfinished)
        if news.events or news.log or (start and start != self.last_line):
            self._heard_s, self._due_after_s = time.monotonic(), QUIET_S
        self.last_line = start or self.last_line

    @property
    def seconds(self) -> float:
        """How long there has been no news."""
        return time.monotonic() - self._heard_s

    def is_due(self) -> bool:
        """Whether it is time to say so again."""
        if self.seconds < self._due_after_s:
            return False
        self._due_after_s = self.seconds + min(self._due_after_s, LONGEST_S)
        return True

    def text(self) -> str:
        """Return how long the run has gone on, for how long it has said nothing, and its last line."""
        elapsed = clock_text(max(0.0, time.time() - self._began))
        words = [elapsed, f"nothing new for {clock_text(self.seconds)}"]
        if self.last_line.strip():
            words.append(f"last: {self.last_line.strip()}")
        return "   ".join(words)
