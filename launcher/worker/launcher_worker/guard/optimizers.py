"""The optimizer whose steps the guard counts, its learning rates, and a check of its eps."""

from __future__ import annotations

import math
import weakref
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence


class FollowedOptimizer:
    """The optimizer whose steps count, if there are several; preferably one that holds watched trainables.

    Example: a GAN has an optimizer for its generator, which is watched, and one for its critic, which is not.
    The guard follows the generator's optimizer.
    """

    def __init__(self) -> None:
        self._followed: Any = None  # a weak reference
        self._is_ours: Any = weakref.WeakKeyDictionary()  # optimizer -> whether it holds a watched trainable
        self._other_steps = 0  # steps of other optimizers since the last step of the followed one

    def forget_trainables(self) -> None:
        """Forget which optimizers hold watched trainables, because the trainables have changed."""
        self._is_ours.clear()

    def is_known(self, optimizer: Any) -> bool:
        """Return whether `learn` was called for an optimizer."""
        return optimizer in self._is_ours

    def learn(self, optimizer: Any, trainable: Sequence[Any]) -> None:
        """Check whether an optimizer holds a watched trainable."""
        watched = {id(part) for part in trainable}
        groups = optimizer.param_groups
        self._is_ours[optimizer] = any(id(part) in watched for group in groups for part in group["params"])

    def is_followed(self, optimizer: Any) -> bool:
        """Return whether this is the optimizer whose steps count."""
        return self._get() is optimizer

    @property
    def holds_trainables(self) -> bool:
        """Whether the followed optimizer holds a watched trainable."""
        followed = self._get()
        return followed is not None and bool(self._is_ours.get(followed, False))

    def note_step(self, optimizer: Any) -> bool:
        """Note a step of a known optimizer; return whether the guard now leaves another optimizer for this one.

        The guard switches if it follows no optimizer, if only the new one holds trainables, or if the
        followed one has made no step for a long time.
        """
        if self.is_followed(optimizer):
            self._other_steps = 0
            return False
        self._other_steps += 1
        is_silent = self._other_steps > 10 * len(self._is_ours)
        is_better = self._is_ours[optimizer] and not self.holds_trainables
        has_followed = self._get() is not None  # False too if a script makes a new optimizer for each step
        if has_followed and not is_silent and not is_better:
            return False
        self._followed = weakref.ref(optimizer)
        self._other_steps = 0
        return has_followed

    def _get(self) -> Any:
        return None if self._followed is None else self._followed()


class StepRates(NamedTuple):
    """The figures of a step that the optimizer's settings give: see `Figures`."""

    rate: Optional[float]
    is_rated: bool
    is_astray: bool


class LearningRates:
    """The learning rates of the last optimizer step, one per parameter group."""

    def __init__(self) -> None:
        self._rates: List[float] = []
        self._has_full_momentum = False
        self._highest = 0.0

    def note(self, optimizer: Any) -> None:
        """Note the rates and momenta of an optimizer before its step."""
        self._rates = [_rate(group) for group in optimizer.param_groups]
        momenta = [group.get("momentum") for group in optimizer.param_groups]
        self._has_full_momentum = any(isinstance(one, (int, float)) and one >= 1 for one in momenta)

    def at_step_end(self) -> StepRates:
        """Return the rates of the step.

        A rate below a thousandth of the highest so far belongs to the start or end of a schedule; such a step
        need not move any weight.
        """
        rate, lowest = max(self._rates, default=math.nan), min(self._rates, default=0.0)
        self._highest = max(self._highest, rate if math.isfinite(rate) else 0.0)
        is_rated = lowest > 0 and rate >= self._highest / 1000
        is_astray = lowest < 0 or self._has_full_momentum
        return StepRates(rate if math.isfinite(rate) else None, is_rated, is_astray)


def parameters_with_gradients(optimizer: Any) -> List[Any]:
    """Return the parameters of an optimizer that have a gradient."""
    return [part for group in optimizer.param_groups for part in group["params"] if part.grad is not None]


def has_tiny_eps(group: Mapping[str, Any]) -> bool:
    """Return whether a group's eps is below float16's smallest normal number."""
    eps = group.get("eps")
    return isinstance(eps, float) and eps < 2**-14


def check_eps(optimizer: Any) -> None:
    """Raise RuntimeError if an optimizer of float16 values has an eps below float16's smallest normal number."""
    import torch

    for group in optimizer.param_groups:
        has_half = any(part.requires_grad and part.dtype == torch.float16 for part in group["params"])
        if has_half and has_tiny_eps(group):
            raise RuntimeError(
                f"eps {group['eps']:g} is below the smallest normal number of float16, and the update divides by it: "
                "train float32 weights, because no eps is right for float16 weights"
            )


def _rate(group: Mapping[str, Any]) -> float:
    """Return a group's learning rate; NaN if the rate is on a device, because to read it would wait for the device."""
    rate = group.get("lr")
    if rate is None or getattr(getattr(rate, "device", None), "type", "cpu") != "cpu":
        return math.nan
    return float(rate)
