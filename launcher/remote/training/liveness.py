"""Whether a training still makes progress, from its steps, events and output."""

from __future__ import annotations

import time
from collections import deque
from typing import Deque, Optional

LEAST_S = 900.0  # longer than NCCL's own watchdog, which reports more, and than most saves and evaluations
TIMES = 30  # the median step
STEPS = 50


class Liveness:
    """When the last step or other sign of life came, and how long a step takes, by the monotonic clock."""

    def __init__(self, hang_s: Optional[float]) -> None:
        """Begin. Silence is a hang after `hang_s` seconds; with None, the usual step time decides."""
        self._hang_s = hang_s
        self._sign_s = time.monotonic()
        self._last: Optional[tuple[int, float]] = None
        self._paces_s: Deque[float] = deque(maxlen=STEPS)

    def note_sign(self) -> None:
        """Note an event or output."""
        self._sign_s = time.monotonic()

    def note_step(self, step: int) -> None:
        """Note a finished step."""
        now_s = time.monotonic()
        if self._last is not None and step > self._last[0]:
            self._paces_s.append((now_s - self._last[1]) / (step - self._last[0]))
        if self._last is None or step != self._last[0]:
            self._last = step, now_s

    def rest(self) -> None:
        """Note that the training is over: what follows has no steps and may be silent."""
        self._last = None
        self._paces_s.clear()

    @property
    def step_s(self) -> Optional[float]:
        """The median time of the last steps in seconds; None before two steps."""
        if not self._paces_s:
            return None
        import statistics  # the first step need not wait for it

        return statistics.median(self._paces_s)

    @property
    def limit_s(self) -> float:
        """The silence that counts as a hang; infinite before two steps have shown how long one takes."""
        if self.step_s is None:
            return float("inf")
        return self._hang_s if self._hang_s is not None else max(LEAST_S, TIMES * self.step_s)

    @property
    def silent_s(self) -> float:
        """The time since the last sign of life."""
        return time.monotonic() - self._sign_s

    def is_hung(self) -> bool:
        """Whether the silence is too long."""
        return self.silent_s > self.limit_s
