"""The plan's gradient scaler: the plan turns a script's scaler on or off; a loop that uses none gets scaled gradients.

In such a loop, gradients are scaled only during `loss.backward()`: those that have accumulated are multiplied by the
scale before it, and all are divided by it afterwards. So the script clips, reads and accumulates its own gradients. A
step with overflowed gradients changes no weights.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Iterable, List, Mapping, Sequence, Tuple

from ..channel import rank
from ..guard import process_guard
from ..precision.precision_watch import note_scaling
from ..shield import shielded
from ..unsaved_hook import UnsavedHook
from ..values import knobs
from .changes import changes

FIRST_SCALE = 2.0**16
"""The scale of the first step. It and the next two are those of torch.amp.GradScaler; powers of two do not round."""
FACTOR = 2.0
GROWTH_STEPS = 2000
"""The scale grows after this many steps without overflow."""
_ARGUMENTS = ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")


class PlannedScaler:
    """The plan's scaling for a loop that uses no scaler, and whether the script uses its own."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._has_own = False
        self._optimizers: Any = weakref.WeakSet()
        self._models: Any = weakref.WeakSet()
        self._inputs: List[Any] = []  # weak references to the inputs whose gradients the script wants
        self._scale = FIRST_SCALE
        self._good_steps = 0
        self._is_scaling = False  # from the first scaled loss on
        self._is_in_backward = False
        self._stepping: Any = (
            None  # the optimizer whose step is under way: a closure calls backward inside it
        )
        self._overflowed: Any = weakref.WeakSet()  # the optimizers whose next step changes no weights
        self._set_aside: List[Tuple[Any, Any]] = []  # the gradients of a step that changes no weights
        self._backwards = 0
        self._steps = 0

    def install(self, torch: Any) -> None:
        """Install the scaler in torch."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._torch = torch
        self._wrap_scalers(torch.amp.GradScaler)
        self._wrap_backward(torch.Tensor)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def follow(self, optimizer: Any) -> None:
        """Note an optimizer of the script."""
        self._optimizers.add(optimizer)

    def follow_model(self, model: Any) -> None:
        """Note a model that was found. Without one, nothing runs in half precision, and nothing is scaled."""
        self._models.add(model)

    def follow_inputs(self, inputs: Any) -> None:
        """Note the inputs of a model whose gradients the script wants."""
        self._inputs = [
            weakref.ref(one)
            for one in inputs
            if isinstance(one, self._torch.Tensor) and one.is_leaf and one.requires_grad
        ]

    def leave_off(self) -> None:
        """Scale nothing from now on."""
        self._has_own = True

    def report_without_step(self) -> None:
        """Print a line if the script computed gradients but never made a step."""
        if self._backwards and not self._steps and rank() == 0:
            count = f"{self._backwards} backward passes" if self._backwards > 1 else "a backward pass"
            print(f"launch: {count} and no optimizer step: nothing was trained", file=sys.stderr, flush=True)

    def _wrap_scalers(self, kind: Any) -> None:
        original, scale, step = kind.__init__, kind.scale, kind.step

        @functools.wraps(original)
        def init(scaler: Any, *args: Any, **kwargs: Any) -> None:
            kwargs.update({name: value for name, value in zip(_ARGUMENTS, args)})  # noqa: B905, C416  # Python 3.8 has no `strict`
            with shielded:
                if kwargs.get("enabled", True) and not knobs().precision.scaler:
                    changes.change("GradScaler", "enabled", True, False)
                    kwargs["enabled"] = False
            original(scaler, **kwargs)

        @functools.wraps(scale)
        def scaled(scaler: Any, outputs: Any) -> Any:
            self._has_own = self._has_own or scaler.is_enabled()
            return scale(scaler, outputs)

        @functools.wraps(step)
        def counted(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._steps += 1  # counted even if the scaler skips the optimizer's step
            return step(scaler, *args, **kwargs)

        kind.__init__, kind.scale, kind.step = init, scaled, counted

    def _wrap_backward(self, tensor: Any) -> None:
        original = tensor.backward

        @functools.wraps(original)
        def backward(loss: Any, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
            scaled = None
            with shielded:
                self._backwards += 1
                if gradient is None and self._can_scale(loss, args, kwargs):
                    scaled = self._begin_backward(loss)
            if scaled is None:
                return original(loss, gradient, *args, **kwargs)
            try:
                return original(scaled, gradient, *args, **kwargs)
            finally:
                with shielded:
                    self._end_backward()

        tensor.backward = backward

    def _can_scale(self, loss: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the plan has a scaler, the script uses none, and nothing else would see scaled gradients."""
        makes_graph = kwargs.get("create_graph") or args[1:2] == (True,)
        if self._has_own or self._is_in_backward or makes_graph or loss.numel() != 1:
            return False
        if not self._models or not self._optimizers or not knobs().peek.precision.scaler:
            return False
        if any(isinstance(one, self._torch.optim.LBFGS) for one in self._optimizers):
            changes.leave("the gradients of LBFGS, which cannot be scaled")
            return False
        if any(map(_has_hooks, self._parts())):
            changes.leave("gradients with hooks of the script, which would see them scaled")
            return False
        return True

    def _begin_backward(self, loss: Any) -> Any:
        """Scale the accumulated gradients; return the scaled loss."""
        changes.add("gradients: scaled during the backward pass")
        note_scaling()
        self._is_scaling = True
        scaled = loss.float() * self._scale
        self._multiply(self._scale)
        self._is_in_backward = True
        return scaled

    def _end_backward(self) -> None:
        self._is_in_backward = False
        self._multiply(1 / self._scale)
        self._inputs = []
        found = [one for one in self._optimizers if self._has_overflow(one)]
        if found:
            self._scale /= FACTOR
            self._good_steps = 0
            gradients = self._gradients(self._parts())
            with self._torch.no_grad():
                self._torch._foreach_zero_(gradients)  # the script sees no infinite gradient
            self._overflowed.update(found)
        if self._stepping is not None:
            self._set_gradients_aside(self._stepping)

    def _parts(self) -> List[Any]:
        """Return the parameters and inputs that get gradients, each once: two optimizers may share a parameter."""
        parts = [part for optimizer in self._optimizers for part in _parts_of(optimizer)]
        parts += [part for model in self._models for part in model.parameters()]
        parts += [one for one in (reference() for reference in self._inputs) if one is not None]
        return list({id(part): part for part in parts}.values())

    def _multiply(self, factor: float) -> None:
        gradients = self._gradients(self._parts())
        if gradients:
            with self._torch.no_grad():
                self._torch._foreach_mul_(gradients, factor)  # a documented beta function

    @staticmethod
    def _gradients(parts: Iterable[Any]) -> List[Any]:
        gradients = [part.grad for part in parts if part.grad is not None]
        return [one._values() if one.is_sparse else one for one in gradients]  # noqa: SLF001  # values() refuses sums

    def _has_overflow(self, optimizer: Any) -> bool:
        gradients = self._gradients(_parts_of(optimizer))
        if not gradients:
            return False
        largest = self._torch._foreach_norm(gradients, float("inf"))  # noqa: SLF001  # a documented beta function
        together = self._torch.stack([one.to(largest[0].device, self._torch.float32) for one in largest])
        return not together.isfinite().all().item()

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._steps += 1
        self._stepping = optimizer
        with shielded:
            self._set_gradients_aside(optimizer)

    def _set_gradients_aside(self, optimizer: Any) -> None:
        """Hide the gradients from a step after an overflow, so that it changes no weights."""
        if optimizer in self._overflowed:
            self._set_aside += [(part, part.grad) for part in _parts_of(optimizer)]
            for part in _parts_of(optimizer):
                part.grad = None

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._stepping = None
        if not self._is_scaling or self._has_own:
            return
        with shielded:
            for part, gradient in self._set_aside:
                if part.grad is None and gradient is not None:  # else its own wider step has restored it
                    part.grad = gradient
            self._set_aside = []
            before = self._scale
            if optimizer in self._overflowed:
                self._overflowed.discard(optimizer)
                before *= FACTOR  # the scale has fallen since the overflow
            else:
                self._good_steps += 1
            if self._good_steps == GROWTH_STEPS:
                self._scale, self._good_steps = self._scale * FACTOR, 0
            process_guard.note_scale(*map(self._torch.tensor, (self._scale, before)))


def _parts_of(optimizer: Any) -> List[Any]:
    return [part for group in optimizer.param_groups for part in group["params"]]


def _has_hooks(part: Any) -> bool:
    """Return whether the script has registered a hook on a tensor's gradient."""
    hooks = (part._backward_hooks or {}).values()  # noqa: SLF001
    is_watched = any(not isinstance(hook, UnsavedHook) for hook in hooks)  # the guard's hook sees no size
    return is_watched or bool(getattr(part, "_post_accumulate_grad_hooks", None))


planned_scaler = PlannedScaler()
