"""Logged steps without any optimizer step, such as from a missing `optimizer.step()`. Plain Python."""

from __future__ import annotations

from typing import Set

# Logged steps that cause a warning. Multiplied by the accumulation: a script may log each micro-batch.
LONG = 20


class IdleLog:
    """The steps logged since the last optimizer step, each after another forward pass of a training.

    They cause a warning, and do not end the attempt: a policy may play many episodes before its first update.
    """

    def __init__(self) -> None:
        self._steps: Set[int] = set()
        self._forward_passes = 0

    def is_long(self, step: int, forward_passes: int, accumulation: int) -> bool:
        """Note a logged step and the forward passes so far; return True once, when the log becomes suspiciously long."""
        is_new = forward_passes > self._forward_passes and step not in self._steps
        self._forward_passes = forward_passes
        if is_new:
            self._steps.add(step)
        return is_new and len(self._steps) == LONG * accumulation
