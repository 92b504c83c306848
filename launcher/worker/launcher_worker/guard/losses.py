"""The course of a loss: where it began, where it has been lately, and whether it falls. Plain Python."""

from __future__ import annotations

import math
import statistics
from typing import List, Optional

FIRST_LOSSES = 5  # their median is where the loss began
RECENT_LOSSES = 20  # their median is where it has been lately: a curriculum raises it little by little
FALLEN = 0.98  # of the first loss: one below is being trained
FALLING = 0.99  # of the loss with which an explosion began: one below has begun to fall again
DONE = 0.5  # of the first loss: if it was below before it became exactly zero, all is learned


class LossCourse:
    """The losses of a training, one step after another."""

    def __init__(self) -> None:
        self.first: Optional[float] = None
        self.last: Optional[float] = None
        self.is_far_above = False  # the last loss: far above both where it began and where it was
        self.is_sudden = False  # the loss had not begun to rise before, as where a curriculum jumps
        self.is_falling = False  # it is far above, but has begun to fall, as after a curriculum's jump
        self._first_losses: List[float] = []
        self._recent_losses: List[float] = []
        self._explosion_began = math.inf
        self._lowest_positive = math.inf

    def add(self, loss: float) -> None:
        """Note the loss of a step; it may be NaN or infinite."""
        if math.isfinite(loss):
            self._compare(loss)
        self.last = loss
        if self.first is None:
            self.first = loss
        if loss > 0:
            self._lowest_positive = min(loss, self._lowest_positive)

    @property
    def has_fallen(self) -> bool:
        """Whether the last loss is clearly below the first."""
        if self.first is None or self.last is None:
            return False
        return self.last < self.first - (1 - FALLEN) * abs(self.first)

    @property
    def is_learned(self) -> bool:
        """Whether the last loss is exactly zero, and was on its way there: a margin's, which has no more to teach."""
        return self.last == 0.0 and self.first is not None and self._lowest_positive < DONE * self.first

    def _compare(self, loss: float) -> None:
        if len(self._first_losses) < FIRST_LOSSES:
            self._first_losses.append(loss)
        else:
            usual = max(abs(statistics.median(level)) for level in (self._first_losses, self._recent_losses))
            if not self.is_far_above:
                before, last = self._recent_losses[-2:]
                self.is_sudden = last <= 1.5 * abs(before)
            began = self._explosion_began if self.is_far_above else loss
            self.is_far_above = loss > 10 * usual + 10
            self.is_falling = self.last is not None and loss < self.last and loss < FALLING * began
            self._explosion_began = began
        self._recent_losses = [*self._recent_losses, loss][-RECENT_LOSSES:]
