"""A lost link to a host: its duration, and the time of the next try."""

from __future__ import annotations

import time

from launcher.cli.output.figures import clock_text
from launcher.errors import HostError

FIRST_AGAIN_S = 10.0
LONGEST_S = 600.0


class LinkLoss:
    """A lost link to a host.

    In output without a live bar, a note is due at once, after 10 s, 20 s, 40 s and so on, then every ten minutes.
    """

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._due_after_s = 0.0
        self._next_try_s = 0.0
        self._host = self._why = ""
        self._tries = 0

    def tried(self, error: HostError, tries: int, wait_s: float) -> None:
        """Record the failed try number `tries`. The next one is in `wait_s` seconds."""
        self._host, self._tries = error.host, tries
        self._why = str(error).splitlines()[0]
        self._next_try_s = time.monotonic() + wait_s

    @property
    def seconds(self) -> float:
        """Seconds since the loss."""
        return time.monotonic() - self._since_s

    def is_due(self) -> bool:
        """Whether a note is due. If so, schedule the next one."""
        if self.seconds < self._due_after_s:
            return False
        self._due_after_s = self.seconds + min(max(self._due_after_s, FIRST_AGAIN_S), LONGEST_S)
        return True

    def text(self) -> str:
        """Return the note: time of the loss, next try, and the reason of the last failure. The run is not affected."""
        wait_s = max(0.0, self._next_try_s - time.monotonic())
        since = f" {clock_text(self.seconds)} ago" if self.seconds >= 1 else ""
        return (
            f"link to {self._host} lost{since}; the run is not affected. Retrying ({self._tries}) in {wait_s:.0f} s"
            f"   {self._why}"
        )
