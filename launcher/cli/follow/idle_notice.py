"""The notice about a run without news: its duration, CPU and card use, and the last printed line."""

from __future__ import annotations

import re
import time
from typing import Any

from launcher.cli.output.figures import clock_text
from launcher.cli.text.log_text import readable
from launcher.copy.record_sync import News
from launcher.runs.follow.evidence import of_service
from launcher.values.states import State

QUIET_S = 10.0
LONGEST_S = 600.0
_WAITING = (State.RESERVED, State.RESUMING)
_CARD_USE = re.compile(r"gpu\d{1,3}\.use_percent")


class IdleNotice:
    """The time since a run last printed or measured something. The host's figures do not count as news.

    A notice is due after 10 s, 20 s, 40 s and so on, and then every ten minutes.
    """

    def __init__(self) -> None:
        self.last_line = ""
        self._figures: dict[str, Any] = {}
        self._waits: str | None = None
        self._began = time.time()
        self._heard_s = time.monotonic()
        self._due_after_s = QUIET_S

    def begin(self, began: float | None) -> None:
        """Start the clock for a run. `began` is the time of its first event by the host's clock, if known."""
        self._began = time.time() if began is None else began
        self._heard_s = time.monotonic()

    def hear(self, news: News) -> None:
        """Reset the clock if an answer contains something to show."""
        start = readable(news.unfinished)
        figures = [event.values for event in news.events if event.kind == "host"]
        self._figures = figures[-1] if figures else self._figures
        if len(figures) < len(news.events) or news.log or (start and start != self.last_line):
            self._heard_s, self._due_after_s = time.monotonic(), QUIET_S
        self.last_line = start or self.last_line
        self._waits = of_service(news.state.evidence) if news.state.state in _WAITING else None

    @property
    def seconds(self) -> float:
        """Seconds since the last news."""
        return time.monotonic() - self._heard_s

    def is_due(self) -> bool:
        """Whether a notice is due. If so, schedule the next one."""
        if self.seconds < self._due_after_s:
            return False
        self._due_after_s = self.seconds + min(self._due_after_s, LONGEST_S)
        return True

    def text(self) -> str:
        """Return the run's elapsed time and the text of `words`."""
        return f"{clock_text(max(0.0, time.time() - self._began))}   {self.words()}"

    def words(self) -> str:
        """Return the time without news, the use of CPU and cards, and the last printed line."""
        words = [f"nothing new for {clock_text(self.seconds)}"]
        if self._waits:  # no process of the run exists, so no figures and no line
            return "   ".join([*words, self._waits])
        words += _use(self._figures)
        if self.last_line.strip():
            words.append(f"last: {self.last_line.strip()}")
        return "   ".join(words)


def _use(figures: dict[str, Any]) -> list[str]:
    """Return the use of the CPUs and of each card that the host has reported."""
    cards = sorted(name for name in figures if _CARD_USE.fullmatch(name))
    labels = {
        "cpu_percent": "CPU",
        **{name: "card" if len(cards) == 1 else f"card {name[3:].partition('.')[0]}" for name in cards},
    }
    return [
        f"{label} {figures[name]:.0f} %"
        for name, label in labels.items()
        if isinstance(figures.get(name), int | float) and 0 <= figures[name] <= 100
    ]
