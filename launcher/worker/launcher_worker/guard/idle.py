"""Steps that a script logs without any step of an optimizer, as where `optimizer.step()` is missing. Plain Python."""

from __future__ import annotations

from typing import Set

LONG = 20  # logged steps, times the accumulation: a script may log each micro-batch


class IdleLog:
    """The steps logged since the last step of an optimizer, each after another forward pass of a training.

    They are a doubt only, not the end of an attempt: a policy may play many episodes before its first update.
    """

    def __init__(self) -> None:
        self._steps: Set[int] = set()
        self._forward_passes = 0

    def is_long(self, step: int, forward_passes: int, accumulation: int) -> bool:
        """Note a logged step and the forward passes so far; return whether it makes the log suspiciously long, once."""
        is_new = forward_passes > self._forward_passes and step not in self._steps
        self._forward_passes = forward_passes
        if is_new:
            self._steps.add(step)
        return is_new and len(self._steps) == LONG * accumulation
