"""Whether a training still does something, by the steps and words that come from it."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Deque, Optional

LEAST_S = 900.0  # longer than NCCL's own watchdog, which says more, and than most savings and evaluations
TIMES = 30  # the median step
STEPS = 50


class Liveness:
    """When the last step, word or other sign of life came, and how long a step takes. Times are of the monotonic clock."""

    def __init__(self, hang_s: Optional[float]) -> None:
        """Begin; silence is a hang after `hang_s` seconds, None for what the pace of the steps says."""
        self._hang_s = hang_s
        self._sign_s = time.monotonic()
        self._last: Optional[tuple[int, float]] = None
        self._paces_s: Deque[float] = deque(maxlen=STEPS)

    def note_sign(self) -> None:
        """Something came: an event, or output."""
        self._sign_s = time.monotonic()

    def note_step(self, step: int) -> None:
        """A step was done."""
        now_s = time.monotonic()
        if self._last is not None and step > self._last[0]:
            self._paces_s.append((now_s - self._last[1]) / (step - self._last[0]))
        if self._last is None or step != self._last[0]:
            self._last = step, now_s

    def rest(self) -> None:
        """The training is over: what follows has no steps, and may be silent."""
        self._last = None
        self._paces_s.clear()

    @property
    def step_s(self) -> Optional[float]:
        """The median of the last steps, in seconds; None before two of them."""
        return statistics.median(self._paces_s) if self._paces_s else None

    @property
    def limit_s(self) -> float:
        """After how much silence it is a hang; never before two steps have shown the pace."""
        if self.step_s is None:
            return float("inf")
        return self._hang_s if self._hang_s is not None else max(LEAST_S, TIMES * self.step_s)

    @property
    def silent_s(self) -> float:
        """For how long nothing came."""
        return time.monotonic() - self._sign_s

    def is_hung(self) -> bool:
        """Whether nothing came for too long."""
        return self.silent_s > self.limit_s
