"""Hang detection from a training's steps, events and output, and from the resource use of its processes."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, Optional

if TYPE_CHECKING:
    from ..system.process_use import Use

MIN_S = 900.0  # longer than NCCL's own watchdog, which reports more, and than most saves and evaluations
TIMES = 30  # the hang limit as a multiple of the median step time
STEPS = 50
IDLE_S = 3600.0
"""The hang limit while the pace is unknown, unless the job sets a limit: seconds without output and resource use."""
LOOK_S = 15.0
IDLE, BUSY, UNSEEN = "idle", "busy", "unseen"
"""The activity of processes after a long silence: none, some, or not visible from here."""


class HangWatch:
    """The time of the last sign of life and the length of a step, by the monotonic clock.

    After two steps the pace is known, and a long silence is a hang. Without a pace (before the second step and
    after the end of the training) silence is normal. It is then a hang only if the processes use no resources,
    by the readings passed to `look`.
    """

    def __init__(self, hang_s: Optional[float], clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock. Silence is a hang after `hang_s` seconds.

        With None, the limit is a multiple of the median step time, or IDLE_S while that is unknown.
        """
        self._hang_s = hang_s
        self._clock = clock
        self._sign_s = clock()
        self._last: Optional[tuple[int, float]] = None
        self._paces_s: Deque[float] = deque(maxlen=STEPS)
        self._idle_limit_s = IDLE_S if hang_s is None else hang_s
        self._name_s = min(MIN_S, self._idle_limit_s)
        self._every_s = min(LOOK_S, self._name_s / 4)
        self._look_s = self._sign_s
        self._before: Optional[Use] = None
        self._is_seen = self._has_worked = False
        self._idle_s = 0.0

    def note_sign(self) -> None:
        """Note an event or output."""
        self._sign_s = self._clock()

    def note_step(self, step: int) -> None:
        """Note a finished step."""
        now_s = self._clock()
        if self._last is not None and step > self._last[0]:
            self._paces_s.append((now_s - self._last[1]) / (step - self._last[0]))
        if self._last is None or step != self._last[0]:
            self._last = step, now_s

    def rest(self) -> None:
        """Note that the training is over: the rest has no steps and may be silent."""
        self._last = None
        self._paces_s.clear()

    @property
    def has_pace(self) -> bool:
        """Whether two steps have shown the length of a step."""
        return bool(self._paces_s)

    @property
    def step_s(self) -> Optional[float]:
        """The median time of the last steps in seconds; None before two steps."""
        if not self._paces_s:
            return None
        import statistics  # loading it would delay the first step

        return statistics.median(self._paces_s)

    @property
    def silent_s(self) -> float:
        """Seconds since the last sign of life."""
        return self._clock() - self._sign_s

    # without a pace

    def is_look_due(self) -> bool:
        """Whether to read the processes' resource use now: every few seconds of a silence without a pace."""
        return not self.has_pace and self._clock() - max(self._sign_s, self._look_s) >= self._every_s

    def look(self, use: Optional[Use], *, is_card_used: bool = False) -> None:
        """Take a reading of the processes' resource use; None if it is not visible.

        Idle time is the sum of the times between readings, so the time that a paused agent missed does not
        count.
        """
        now_s, before_s = self._clock(), self._look_s
        if self._sign_s > before_s:  # a new silence has begun
            self._before, self._idle_s, self._has_worked = None, 0.0, False
        before, self._before = self._before, use
        passed_s = min(now_s - before_s, 2 * self._every_s)
        is_idle = None if use is None or before is None else use.is_idle_since(before, passed_s)
        if is_card_used or is_idle is False:
            self._idle_s, self._has_worked = 0.0, True
        elif is_idle:
            self._idle_s += passed_s
        elif use is None:
            self._idle_s = 0.0
        self._look_s, self._is_seen = now_s, use is not None

    def await_answer(self) -> None:
        """Note that the processes were asked for their stacks: the CPU time of the answer does not count."""
        self._look_s, self._before = self._clock(), None

    @property
    def doing(self) -> Optional[str]:
        """The processes' activity during a long silence without a pace; None in other silences."""
        if self.has_pace or self._look_s < self._sign_s or self.silent_s < self._name_s:
            return None
        if not self._is_seen:
            return UNSEEN
        if self._idle_s >= (self._name_s if self._has_worked else self._name_s / 2):
            return IDLE
        return BUSY if self._has_worked else None

    def is_hung(self) -> bool:
        """Whether the silence is too long."""
        step_s = self.step_s
        if step_s is None:
            return self._idle_s >= self._idle_limit_s and self._look_s >= self._sign_s
        return self.silent_s > (self._hang_s if self._hang_s is not None else max(MIN_S, TIMES * step_s))
