"""float16 weights outside of the found models: Adam steps a float32 copy of each.

The script computes with such a weight itself, so it stays in float16 between the steps. A step in float16 would divide
by an eps that float16 cannot hold. Other weights are stepped as they are.
"""

from __future__ import annotations

from typing import Any

from ..guard.optimizers import has_tiny_eps
from ..shield import shielded
from ..values import knobs
from .changes import changes


class WideSteps:
    """Gives optimizers float32 copies of half-precision weights during a step."""

    def __init__(self) -> None:
        """Begin without copies. Raises ImportError before torch 2.0."""
        from torch.utils.weak import WeakTensorKeyDictionary

        self._copies: Any = WeakTensorKeyDictionary()
        self._narrow: Any = []  # the weights of the step that is under way, with their gradients in half precision

    def install(self) -> None:
        """Install the hooks on every optimizer."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(self._widen)
        register_optimizer_step_post_hook(self._restore)

    @shielded
    def _widen(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._restore(optimizer, args, kwargs)  # of a step that has failed
        has_closure = (
            len(args) > 1 or kwargs.get("closure") is not None
        )  # its forward pass needs the script's dtype
        if has_closure or knobs().peek.precision.trainable_dtype != "float32":
            return
        for group in optimizer.param_groups:
            for part in group["params"] if has_tiny_eps(group) else ():
                if str(part.dtype) == "torch.float16":
                    self._widen_one(part)
        if self._narrow:
            count = len(self._narrow)
            changes.add(f"half-precision weights outside of the model: {count} stepped in float32")

    def _widen_one(self, part: Any) -> None:
        copy, gradient = self._copies.get(part), part.grad
        if copy is None or not copy.to(part.dtype).equal(part.data):  # the script has changed it since
            copy = part.data.float()
        self._narrow.append((part, part.dtype, gradient))
        part.grad = None  # a gradient has the dtype of its weight
        part.data = copy
        part.grad = None if gradient is None else gradient.float()

    @shielded
    def _restore(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        narrow, self._narrow = self._narrow, []
        for part, dtype, gradient in narrow:
            self._copies[part] = part.data
            part.grad = None
            part.data = part.data.to(dtype)
            part.grad = gradient
