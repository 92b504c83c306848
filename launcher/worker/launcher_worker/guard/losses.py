"""The course of a loss: its start, its recent level, and whether it falls. Plain Python."""

from __future__ import annotations

import math
import statistics
from typing import List, Optional

FIRST_LOSSES = 5  # their median is the loss at the start
RECENT_LOSSES = 20  # their median is the recent level: a curriculum raises it little by little
FALLING = 0.99  # of the loss with which an explosion began: a loss below it has begun to fall again
SUDDEN = 3.0  # times the loss of the step before: such a jump is sudden
NOISY = 0.5  # of their median: losses that far apart show no trend in a few steps
RISING = 3.0  # times the loss with which an explosion began: a median above it still rises
ABSURD = 1e5  # times the loss at the start: a loss that has risen so far little by little diverges too
DONE = 0.5  # of the first loss: if it was below before it became exactly zero, the task is learned


class LossCourse:
    """The losses of a training, one step after another."""

    def __init__(self) -> None:
        self.first: Optional[float] = None
        self.last: Optional[float] = None
        self.is_far_above = False  # the last loss: far above both its start and its recent level
        self.is_sudden = False  # it rose there in one step, as in a curriculum's jump
        self.is_harder = False  # it jumped there, stopped rising, and has fallen or is too noisy to tell
        self.is_falling = False  # it is far above, but has begun to fall, as after a curriculum's jump
        self._first_losses: List[float] = []
        self._recent_losses: List[float] = []
        self._high_losses: List[float] = []  # since it is far above
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
    def has_doubled(self) -> bool:
        """Whether the last loss exceeds the first by more than the first's size."""
        if self.first is None or self.last is None:
            return False
        return self.last > self.first + abs(self.first)

    @property
    def is_learned(self) -> bool:
        """Whether the last loss is exactly zero, and fell towards it: a margin loss that is fully learned."""
        return self.last == 0.0 and self.first is not None and self._lowest_positive < DONE * self.first

    def _compare(self, loss: float) -> None:
        if len(self._first_losses) < FIRST_LOSSES:
            self._first_losses.append(loss)
        else:
            usual = max(abs(statistics.median(level)) for level in (self._first_losses, self._recent_losses))
            was_far_above = self.is_far_above
            self.is_far_above = loss > 10 * usual + 10 or self._is_absurd(loss)
            if self.is_far_above and not was_far_above:
                before, last = (abs(recent) for recent in self._recent_losses[-2:])
                self.is_sudden = last <= 1.5 * before and loss > SUDDEN * last and not self._is_absurd(loss)
                self._high_losses = []
            self._compare_high(loss)
        self._recent_losses = [*self._recent_losses, loss][-RECENT_LOSSES:]

    def _compare_high(self, loss: float) -> None:
        """Compare a high loss with the others since the explosion, whose first loss is `began`."""
        self._high_losses = [*self._high_losses, loss][-RECENT_LOSSES:] if self.is_far_above else []
        began = self._high_losses[0] if self._high_losses else -math.inf
        self.is_falling = self.last is not None and loss < self.last and loss < FALLING * began
        self.is_harder = self.is_far_above and self.is_sudden and self._has_settled()

    def _has_settled(self) -> bool:
        """Whether the losses since a jump do not rise, and have fallen below the first of them or are noisy."""
        began, usual = self._high_losses[0], statistics.median(self._high_losses)
        lowest, highest = min(self._high_losses), max(self._high_losses)
        is_open = lowest < FALLING * began or highest - lowest > NOISY * usual
        return usual <= RISING * began and is_open

    def _is_absurd(self, loss: float) -> bool:
        return loss > ABSURD * (abs(statistics.median(self._first_losses)) + 1)
