"""The course of a loss: its start, its recent level, and whether it falls. Plain Python."""

from __future__ import annotations

import math
import statistics
from typing import List, Optional

FIRST_LOSSES = 5  # the loss at the start is the median of this many losses
RECENT_LOSSES = 20  # the recent level is the median of this many losses; a curriculum raises it slowly
# In an explosion, a loss below this share of the explosion's first loss has begun to fall.
FALLING = 0.99
# A jump to more than this multiple of the previous loss is sudden, unless the loss had begun to rise before.
SUDDEN = 3.0
# Losses are too noisy to show a trend if their spread exceeds this share of their median.
NOISY = 0.5
# In an explosion, the loss still rises if its median exceeds this multiple of the explosion's first loss.
RISING = 3.0
# A loss above this multiple of the loss at the start diverges, even if it rose slowly.
ABSURD = 1e5
# A loss of exactly zero means a learned task if an earlier loss was below this share of the first loss.
DONE = 0.5


class LossCourse:
    """The losses of a training, one step after another."""

    def __init__(self) -> None:
        self.first: Optional[float] = None
        self.last: Optional[float] = None
        self.has_been_finite = False
        # the last loss is far above both the loss at the start and the recent level
        self.is_far_above = False
        self.is_sudden = False  # the loss rose that far in one step, as in a curriculum's jump
        self.is_harder = False  # after a sudden jump, the loss stopped rising, and has fallen or is noisy
        self.is_falling = False  # the loss is far above, but has begun to fall
        self._first_losses: List[float] = []
        self._recent_losses: List[float] = []
        self._high_losses: List[float] = []  # the losses since the explosion began
        self._lowest_positive = math.inf

    def add(self, loss: float) -> None:
        """Note the loss of a step; it may be NaN or infinite."""
        if math.isfinite(loss):
            self.has_been_finite = True
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
        """Whether the last loss is exactly zero after a fall: a margin loss that is fully learned."""
        return self.last == 0.0 and self.first is not None and self._lowest_positive < DONE * self.first

    def _compare(self, loss: float) -> None:
        if len(self._first_losses) < FIRST_LOSSES:
            self._first_losses.append(loss)
        else:
            usual = max(abs(statistics.median(level)) for level in (self._first_losses, self._recent_losses))
            was_far_above = self.is_far_above
            self.is_far_above = loss > 10 * usual + 10 or self._is_absurd(loss)
            if self.is_far_above and not was_far_above:
                # the larger of two losses, because small losses are noisy
                *before, last = (abs(recent) for recent in self._recent_losses[-3:])
                had_risen = last > 1.5 * max(before)
                self.is_sudden = not had_risen and loss > SUDDEN * last and not self._is_absurd(loss)
                self._high_losses = []
            self._compare_high(loss)
        self._recent_losses = [*self._recent_losses, loss][-RECENT_LOSSES:]

    def _compare_high(self, loss: float) -> None:
        """Compare a high loss with the explosion's other losses; `began` is the first of them."""
        self._high_losses = [*self._high_losses, loss][-RECENT_LOSSES:] if self.is_far_above else []
        began = self._high_losses[0] if self._high_losses else -math.inf
        self.is_falling = self.last is not None and loss < self.last and loss < FALLING * began
        self.is_harder = self.is_far_above and self.is_sudden and self._has_settled()

    def _has_settled(self) -> bool:
        """Return whether the losses since a jump have stopped rising, and have fallen below the first or are noisy."""
        began, usual = self._high_losses[0], statistics.median(self._high_losses)
        lowest, highest = min(self._high_losses), max(self._high_losses)
        is_open = lowest < FALLING * began or highest - lowest > NOISY * usual
        return usual <= RISING * began and is_open

    def _is_absurd(self, loss: float) -> bool:
        return loss > ABSURD * (abs(statistics.median(self._first_losses)) + 1)
