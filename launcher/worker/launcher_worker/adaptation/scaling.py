"""The plan's gradient scaler: the plan turns a script's scaler on or off; a loop without a scaler gets the plan's.

In such a loop, `loss.backward()` scales the loss, gradient clipping and `optimizer.step()` unscale first, and
a step with overflowed gradients changes no weights.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Callable, Set

from ..channel import rank
from ..guard import process_guard
from ..shield import shielded
from ..values import knobs
from .changes import changes

_ARGUMENTS = ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
_CLIPPING = ("clip_grad_norm_", "clip_grad_value_")


class PlannedScaler:
    """The plan's scaler for a loop that has none, and whether the script has its own."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._has_own = False
        self._scaler: Any = None
        self._is_making = False
        self._is_scaled = False  # whether gradients of a scaled loss exist
        self._unscaled: Set[int] = set()  # ids of optimizers whose gradients are unscaled, until their step
        self._optimizers: Any = weakref.WeakSet()
        self._backwards = 0
        self._steps = 0

    def install(self, torch: Any) -> None:
        """Install the scaler in torch."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._torch = torch
        self._wrap_scalers(torch.amp.GradScaler)
        self._wrap_backward(torch.Tensor)
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            for name in _CLIPPING:
                setattr(module, name, self._wrapped_clipping(getattr(module, name)))
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def follow(self, optimizer: Any) -> None:
        """Note an optimizer of the script."""
        self._optimizers.add(optimizer)

    def report_without_step(self) -> None:
        """Print a line if the script computed gradients but never made a step."""
        if self._backwards and not self._steps and rank() == 0:
            count = f"{self._backwards} backward passes" if self._backwards > 1 else "a backward pass"
            print(f"launch: {count} and no optimizer step: nothing was trained", file=sys.stderr, flush=True)

    def _wrap_scalers(self, kind: Any) -> None:
        original = kind.__init__

        @functools.wraps(original)
        def init(scaler: Any, *args: Any, **kwargs: Any) -> None:
            kwargs.update({name: value for name, value in zip(_ARGUMENTS, args)})  # noqa: B905, C416  # Python 3.8 has no `strict`
            if not self._is_making:
                with shielded:
                    planned = knobs().precision.scaler
                    changes.change("GradScaler", "enabled", kwargs.get("enabled", True), planned)
                    kwargs["enabled"] = planned
                    self._has_own = True
            original(scaler, **kwargs)

        step = kind.step

        @functools.wraps(step)
        def counted(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._steps += 1  # counted even if the scaler skips the optimizer's step
            return step(scaler, *args, **kwargs)

        kind.__init__, kind.step = init, counted

    def _wrap_backward(self, tensor: Any) -> None:
        original = tensor.backward

        @functools.wraps(original)
        def backward(loss: Any, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
            with shielded:
                self._backwards += 1
                loss = self._scaled(loss) if gradient is None else loss
            return original(loss, gradient, *args, **kwargs)

        tensor.backward = backward

    def _scaled(self, loss: Any) -> Any:
        """Return the loss times the scale, if the plan has a scaler and the script has none."""
        if self._has_own or not self._optimizers or not knobs().peek.precision.scaler or loss.numel() != 1:
            return loss
        if any(isinstance(one, self._torch.optim.LBFGS) for one in self._optimizers):
            changes.leave("the gradients of LBFGS, which cannot be scaled")
            return loss
        if self._scaler is None:
            self._is_making = True
            self._scaler = self._torch.amp.GradScaler(knobs().peek.precision.device)
            self._is_making = False
            changes.add("gradients: scaled by a GradScaler")
        self._is_scaled = True
        return self._scaler.scale(loss.float())

    def _wrapped_clipping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip(*args: Any, **kwargs: Any) -> Any:
            with shielded:
                for optimizer in list(self._optimizers) if self._is_scaled else ():
                    self._unscale(optimizer)
            return original(*args, **kwargs)

        return clip

    def _unscale(self, optimizer: Any) -> None:
        has_gradients = any(
            part.grad is not None for group in optimizer.param_groups for part in group["params"]
        )
        if has_gradients and id(optimizer) not in self._unscaled:
            self._scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._steps += 1
        if self._scaler is not None:  # the guard's step then ends with the scaler's update
            process_guard.is_scaling = self._is_scaled
        if not self._is_scaled:
            return
        with shielded:
            self._unscale(optimizer)
            found = self._scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]  # noqa: SLF001
            if any(one.item() for one in found.values()):
                for group in optimizer.param_groups:
                    for part in group["params"]:
                        part.grad = None  # so the step changes no weights

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if id(optimizer) not in self._unscaled:
            return
        self._unscaled.discard(id(optimizer))
        if not self._unscaled:
            self._is_scaled = False
        self._scaler.update()


planned_scaler = PlannedScaler()
