"""Watch the training loss of a log: its last value, and whether it diverged."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

MOST_CHARS = 500


class Divergence(NamedTuple):
    """A loss that became non-finite: its first line, and the step after the last finite one."""

    line: str
    since: int


class LastLoss(NamedTuple):
    """The last training loss of a log: its name, its value, its step if the log gives one, and its line."""

    name: str
    value: float
    step: Optional[int]
    line: str

    @property
    def is_finite(self) -> bool:
        """Whether the value is a number."""
        return math.isfinite(self.value)


class LossWatch:
    """Two non-finite training losses in a row are a divergence; `divergence` is the first of the log.

    A non-finite gradient norm alone is not: a scaler's first steps overflow. Evaluations are not judged.
    """

    def __init__(self) -> None:
        """Begin before the first loss."""
        self.last: Optional[LastLoss] = None
        self.divergence: Optional[Divergence] = None
        self._suspect: Optional[Divergence] = None
        self._good_step = 0

    def take(self, name: str, value: float, step: Optional[int], line: str) -> None:
        """Take in the next training loss."""
        self.last = LastLoss(name, value, step, line.strip()[:MOST_CHARS])
        if math.isfinite(value):
            self._suspect = None
            self._good_step = self._good_step if step is None else step
        elif self._suspect is None:
            self._suspect = Divergence(self.last.line, self._good_step + 1)
        elif self.divergence is None:
            self.divergence = self._suspect
