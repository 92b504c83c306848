"""Gradients that a script forgot to zero: each step then applies the sum of all gradients so far.

Only the start of a backward pass shows it: many scripts zero the gradients between the forward and the backward pass,
and the gradients of an accumulation must stay. So a hook on one small parameter sees each of its new gradients just
before torch adds it to the old one.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..unsaved_hook import UnsavedHook
from .optimizers import parameters_with_gradients
from .samples import can_be_sampled


class UnzeroedGradients:
    """Whether a parameter still had an old gradient at all backward passes since the last step."""

    def __init__(self) -> None:
        self._optimizer: Any = None  # a weak reference
        self._parameter: Any = None  # the smallest one of the optimizer that has a gradient
        self._hook: Any = None
        # None before the first backward pass of a step, False after one without an old gradient; else a tensor
        self._are_left: Any = None

    def follow(self, optimizer: Any) -> None:
        """Follow an optimizer: only what it holds must be zeroed for its steps."""
        if self._optimizer is not None and self._optimizer() is optimizer:
            return
        parts = parameters_with_gradients(optimizer)
        readable = [part for part in parts if part.requires_grad and can_be_sampled(part.grad)]
        if not readable:
            return
        if self._hook is not None:
            self._hook.remove()
        self._optimizer, self._are_left = weakref.ref(optimizer), None
        self._parameter = min(readable, key=lambda part: part.numel())
        self._hook = self._parameter.register_hook(UnsavedHook(self._see))

    def take(self) -> Any:
        """Return, as a bool tensor, whether gradients of the last step were left; None if there were none."""
        are_left, self._are_left = self._are_left, None
        return None if are_left is False else are_left

    def _see(self, _new: Any) -> None:
        """Look at the old gradient. After a backward pass without one, later ones of the step only accumulate."""
        old = self._parameter.grad
        if old is None or self._are_left is False:
            self._are_left = False
        else:
            is_left = (old != 0).any()
            self._are_left = is_left if self._are_left is None else self._are_left & is_left
