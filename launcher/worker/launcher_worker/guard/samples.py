"""Samples: a few thousand elements of a model, read after every step.

Reading whole models would cost time. 4096 elements of up to 16 tensors show whether weights move, how far,
and whether they are finite. A separate generator draws the elements, so the training's random numbers do not
change.
"""

from __future__ import annotations

import functools
import math
import random
from typing import Any, Sequence, Tuple

WEIGHT_TENSORS = 16  # the number of trainable tensors that are read after every step
BASE_TENSORS = 2
# A leap exceeds at least this root mean square: smaller steps are normal for weights that begin near zero.
SMALL = 0.1
# Float32 rounds a number by up to this share of it.
SHARE_OF_ROUNDING = 2**-24
# The number of elements of a sample, over all its tensors. A smaller sample could miss a step that moves only
# few rows of an embedding.
ELEMENTS = 4096


class Sample:
    """Some elements of some parameters, and their values at the last reading."""

    def __init__(self, parameters: Sequence[Any], tensors: int) -> None:
        generator = random.Random(0)  # noqa: S311  # the same choice each time, and not a secret
        chosen = generator.sample(list(parameters), min(tensors, len(parameters)))
        self.parts = [
            (part, sampled_indices(local(part).numel(), ELEMENTS // len(chosen), part.device))
            for part in chosen
        ]
        self.norms: Any = None  # the norm of each tensor's elements at the start
        self._last: Any = None
        self._first: Any = None

    def aim_at_gradients(self) -> None:
        """Switch to the elements with the largest gradients."""
        count = max(1, ELEMENTS // len(self.parts))
        gradients = [(part, local(part.grad).flatten()) for part, _ in self.parts]
        self.parts = [
            (part, gradient.abs().topk(min(count, gradient.numel())).indices) for part, gradient in gradients
        ]
        # the rows of the elements' matrix need equal lengths
        if len({indices.numel() for _, indices in self.parts}) > 1:
            shortest = min(indices.numel() for _, indices in self.parts)
            self.parts = [(part, indices[:shortest]) for part, indices in self.parts]
        self._last = None
        self.read()

    def read(self) -> Tuple[Any, Any]:
        """Return the elements, and their movement since the last reading: two matrices, a row per tensor."""
        import torch

        device = self.parts[0][0].device
        rows = [
            local(parameter).detach().take(indices).to(device, torch.float32, non_blocking=True)
            for parameter, indices in self.parts
        ]
        elements = torch.stack(rows)
        before, self._last = self._last, elements
        if before is None:
            self._first, self.norms = elements, elements.norm(dim=1)
            return elements, torch.zeros_like(elements)
        return elements, elements - before

    def are_at_start(self, elements: Any) -> Any:
        """Return, as a bool tensor, whether no tensor has moved further from its start than float32 rounds.

        A tensor that began near zero, such as a LoRA's B, is compared with the smallest other one: next to its own
        size every movement is large.
        """
        is_small = self.norms <= SHARE_OF_ROUNDING * self.norms.max()
        others = self.norms.masked_fill(is_small, math.inf).min().nan_to_num(posinf=0.0)
        sizes = self.norms.where(~is_small, others)
        return ((elements - self._first).norm(dim=1) <= SHARE_OF_ROUNDING * sizes).all()

    def have_leapt(self, moves: Any) -> Any:
        """Return, as a bool tensor, whether the elements together moved by more than their size.

        The size is their root mean square at the start, at least SMALL. One tensor alone proves nothing: a bias
        may begin near zero, and a LoRA's B begins at zero. A tensor that began non-finite does not count.
        """
        unknown = ~self.norms.isfinite()
        size = self.norms.masked_fill(unknown, 0).norm().clamp(min=SMALL * moves.numel() ** 0.5)
        return ~(moves.norm(dim=1).masked_fill(unknown, 0).norm() <= size)  # so that NaN counts as a leap


@functools.lru_cache(maxsize=64)
def sampled_indices(size: int, count: int, device: Any) -> Any:
    """Draw `count` indices below `size`, without touching the training's random numbers."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.randint(size, (count,), generator=generator).to(device)


def local(tensor: Any) -> Any:
    """Return this rank's share of a tensor that is divided among ranks (a DTensor); any other tensor itself."""
    return tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor


def can_be_sampled(tensor: Any) -> bool:
    """Return whether a tensor, or this rank's share of it, is a plain floating-point one: no placeholder or quantized weights."""
    import torch

    tensor = local(tensor)
    return bool(
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        and tensor.numel()
        and not tensor.is_meta
        and not tensor.is_sparse
    )
