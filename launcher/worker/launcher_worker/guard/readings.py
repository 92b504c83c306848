"""The observations during one optimizer step, and their copy from the device to the host.

On CUDA the copy is asynchronous: the numbers are read one step later, when they have arrived.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from .optimizers import StepRates
from .rules import Figures


class OpenStep:
    """The observations since the last optimizer step; tensors stay on their device."""

    def __init__(self) -> None:
        self.forward_passes = 0
        # the size of the largest gradient element, and whether all gradients are zero
        self.gradients: Optional[Tuple[Any, Any]] = None
        self.are_left: Any = None  # whether the gradients of the step before were never zeroed
        self.scaling: Optional[Tuple[Any, Any]] = None  # whether the step was skipped, and the new scale
        self._loss: Any = None
        self._trainer_loss: Any = None

    def add_trainer_loss(self, loss: Any) -> None:
        """Add the loss of a micro-batch as a Trainer optimizes it. It need not be that of the model's output, as in DPO."""
        loss = loss.detach().float()
        self._trainer_loss = loss if self._trainer_loss is None else self._trainer_loss + loss

    def add_loss(self, loss: Any) -> None:
        """Add the loss of a forward pass."""
        mean = loss.detach().float().mean()
        self._loss = mean if self._loss is None else self._loss + mean.to(self._loss.device)

    def measure(self) -> Dict[str, Any]:
        """Return the observations, as tensors on their device."""
        numbers: Dict[str, Any] = {}
        if self._loss is not None:
            mean = self._loss / max(1, self.forward_passes)
            numbers["loss"] = mean if self._trainer_loss is None else self._trainer_loss
        if self.gradients is not None:
            numbers["size"], numbers["zero"] = self.gradients
        if self.are_left is not None:
            numbers["left"] = self.are_left
        if self.scaling is not None:
            numbers["skipped"], numbers["scale"] = self.scaling
        return numbers


class Reading(NamedTuple):
    """The figures of a step, possibly still in transfer from the device."""

    step: int
    names: Tuple[str, ...]
    numbers: Any
    arrival: Any  # a CUDA event; None if the numbers are already on the host
    rates: StepRates

    def figures(self, *, is_norm_bad: bool) -> Figures:
        """Wait for the numbers; return the figures of the step. `is_norm_bad` if Trainer logged a non-finite norm."""
        if self.arrival is not None:
            self.arrival.synchronize()
        numbers = dict(zip(self.names, self.numbers.tolist() if self.names else ()))  # noqa: B905 - Python 3.8 has no `strict`
        size = numbers.get("size")
        is_bad = is_norm_bad or not math.isfinite(size or 0.0)
        gradient = "bad" if is_bad else "zero" if numbers.get("zero") else "fine"
        return Figures(
            loss=numbers.get("loss"),
            moved=bool(numbers["moved"]) if "moved" in numbers else None,
            finite=bool(numbers.get("finite", True)),
            leapt=bool(numbers.get("leapt", False)),
            base_moved=bool(numbers.get("base", False)),
            gradient=gradient if is_bad or size is not None else "",
            size=size,
            are_left=bool(numbers.get("left", False)),
            at_start=bool(numbers["near"]) if "near" in numbers else None,
            skipped=bool(numbers.get("skipped", False)),
            scale=numbers.get("scale"),
            **self.rates._asdict(),
        )


def start_reading(step: int, numbers: Mapping[str, Any], rates: StepRates) -> Reading:
    """Start the copy of a step's numbers to the host."""
    return Reading(step, tuple(numbers), *_fetch(numbers), rates)


def _fetch(numbers: Mapping[str, Any]) -> Tuple[Any, Any]:
    """Return the numbers as one tensor, and on CUDA the event after which that tensor is complete."""
    import torch

    if not numbers:
        return None, None
    tensors = list(numbers.values())
    device = tensors[0].device
    stacked = torch.stack([tensor.to(device, torch.float32, non_blocking=True) for tensor in tensors])
    if device.type != "cuda":
        return stacked, None
    on_host = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
    on_host.copy_(stacked, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return on_host, event
