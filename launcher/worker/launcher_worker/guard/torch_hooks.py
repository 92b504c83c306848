"""torch's reports to the guard: forward passes, optimizer steps, scaler updates and casts.

`install` registers torch's global optimizer hooks and wraps three methods of torch for this process:

    torch.amp.GradScaler.step and .update   on the class, because accelerate and Trainer make scalers
                                            themselves
    torch.nn.Module._apply                  called by every cast: to, half, float, ...; it has no public name

Each wrapper calls the original with the same arguments and returns its result.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, List, Mapping, Optional, Protocol, Sequence

from ..unsaved_hook import UnsavedHook

CAST_REFUSED = (
    "the dtype of a model in training must not change: the optimizer's state keeps the old dtype, and Adam fails at "
    "the next step, where the two meet. Cast a copy instead: copy.deepcopy(model).to(...). Trainer's bf16_full_eval "
    "and fp16_full_eval cast the live model too: evaluate without them"
)

_no_casts: "weakref.WeakKeyDictionary[Any, Optional[Callable[[], None]]]" = weakref.WeakKeyDictionary()
"""Models whose dtypes must not change, each with the function to call at a cast; with None a cast raises."""


class StepListener(Protocol):
    """The receiver of these reports: the guard."""

    is_scaling: bool

    def see_forward(self, module: Any, output: Any) -> None:
        """Note a forward pass of a model."""

    def before_step(self, optimizer: Any, has_closure: bool = False) -> None:
        """Note that an optimizer is about to step."""

    def after_step(self, optimizer: Any) -> None:
        """Note that an optimizer has made a step."""

    def after_update(self, scale: Any, before: Any) -> None:
        """Note a scaler's update, with its scale now and before."""


_listeners: List[StepListener] = []  # at most one


def install(listener: StepListener) -> None:
    """Make torch report to a listener from now on; the first call in a process wins."""
    if _listeners:
        return
    _listeners.append(listener)
    _hook_optimizers(listener)
    _wrap_scalers(listener)
    _wrap_casts()


def hook_forward(model: Any) -> None:
    """Report the forward passes of a model to the listener; those of a copy are not reported."""
    model.register_forward_hook(UnsavedHook(_see_forward))


def _see_forward(module: Any, _arguments: Any, output: Any) -> None:
    for listener in _listeners:
        listener.see_forward(module, output)


def forbid_casts(model: Any, instead: Optional[Callable[[], None]] = None) -> None:
    """Refuse every later cast of a model to another dtype: raise, or skip the cast and call `instead`."""
    _no_casts[model] = instead


def allow_casts() -> None:
    """Allow casts of every model again, after the training."""
    _no_casts.clear()


def has_closure(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a step, by the arguments that torch gives its hooks, has a closure; accelerate passes None."""
    closures = (*args[1:], kwargs.get("closure"))  # the first argument is the optimizer
    return any(closure is not None for closure in closures)


def _hook_optimizers(listener: StepListener) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        listener.before_step(optimizer, has_closure=has_closure(args, kwargs))

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: listener.after_step(optimizer))


def _wrap_scalers(listener: StepListener) -> None:
    import torch

    scaler = torch.amp.GradScaler
    step, update = scaler.step, scaler.update

    @functools.wraps(step)
    def watched_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        listener.is_scaling = self.is_enabled()
        try:
            return step(self, *args, **kwargs)
        finally:
            listener.is_scaling = False

    @functools.wraps(update)
    def watched_update(self: Any, *args: Any, **kwargs: Any) -> None:
        before = self._scale.clone() if self.is_enabled() else None
        update(self, *args, **kwargs)
        if before is not None:
            listener.after_update(self._scale, before)

    scaler.step, scaler.update = watched_step, watched_update


def _wrap_casts() -> None:
    import torch

    apply = torch.nn.Module._apply  # noqa: SLF001  # all casts use it, and it has no public name

    @functools.wraps(apply)
    def watched_apply(self: Any, change: Callable[[Any], Any], *args: Any, **kwargs: Any) -> Any:
        if self in _no_casts:
            for dtype in {part.dtype for part in self.parameters() if part.is_floating_point()}:
                if change(torch.empty(0, dtype=dtype)).dtype != dtype:
                    instead = _no_casts[self]
                    if instead is None:
                        raise RuntimeError(CAST_REFUSED)
                    instead()
                    return self
        return apply(self, change, *args, **kwargs)

    torch.nn.Module._apply = watched_apply  # noqa: SLF001
