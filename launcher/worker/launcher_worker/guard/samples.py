"""Samples: a few thousand elements of a model, read after every step.

Reading whole models would cost time. 4096 elements of up to 16 tensors show whether weights move, how far,
and whether they are finite. A separate generator draws the elements, so the training's random numbers do not
change.
"""

from __future__ import annotations

import functools
import random
from typing import Any, Sequence, Tuple

WEIGHT_TENSORS = 16  # of the trainables, read after every step
BASE_TENSORS = 2
MIN_SIZE = 0.05  # of the largest norm: a smaller tensor has barely begun to train
ELEMENTS = 4096  # of all tensors of a sample together: a step may move only few rows of an embedding


class Sample:
    """Some elements of some parameters, and their values at the last reading."""

    def __init__(self, parameters: Sequence[Any], tensors: int) -> None:
        generator = random.Random(0)  # noqa: S311  # the same choice each time, and not a secret
        chosen = generator.sample(list(parameters), min(tensors, len(parameters)))
        self.parts = [
            (parameter, sampled_indices(parameter.numel(), ELEMENTS // len(chosen), parameter.device))
            for parameter in chosen
        ]
        self.norms: Any = None  # of each tensor's elements at the start
        self.has_size: Any = (
            None  # of each tensor: whether its norm then was large enough to compare a step with
        )
        self._last: Any = None

    def aim_at_gradients(self) -> None:
        """Switch to the elements with the largest gradients."""
        count = max(1, ELEMENTS // len(self.parts))
        self.parts = [
            (part, part.grad.flatten().abs().topk(min(count, part.numel())).indices) for part, _ in self.parts
        ]
        if len({indices.numel() for _, indices in self.parts}) > 1:  # the rows of a matrix have one length
            shortest = min(indices.numel() for _, indices in self.parts)
            self.parts = [(part, indices[:shortest]) for part, indices in self.parts]
        self._last = None
        self.read()

    def read(self) -> Tuple[Any, Any]:
        """Return the elements, and their movement since the last reading: two matrices, a row per tensor."""
        import torch

        device = self.parts[0][0].device
        rows = [
            parameter.detach().take(indices).to(device, torch.float32, non_blocking=True)
            for parameter, indices in self.parts
        ]
        elements = torch.stack(rows)
        before, self._last = self._last, elements
        if before is None:
            self.norms = elements.norm(dim=1)
            self.has_size = self._sized()
            return elements, torch.zeros_like(elements)
        return elements, elements - before

    def _sized(self) -> Any:
        """Compare each tensor's norm with the largest of its kind, vectors or matrices.

        The weights of 1 in a norm layer are no measure for matrices. A LoRA's B begins near zero, so any step
        is larger than B itself.
        """
        import torch

        vectors = torch.tensor([parameter.dim() < 2 for parameter, _ in self.parts]).to(self.norms.device)
        sized = torch.zeros_like(vectors)
        for kind in (vectors, ~vectors):
            sized |= kind & (self.norms > MIN_SIZE * (self.norms * kind).max())
        return sized


@functools.lru_cache(maxsize=64)
def sampled_indices(size: int, count: int, device: Any) -> Any:
    """Draw `count` indices below `size`, without touching the training's random numbers."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.randint(size, (count,), generator=generator).to(device)


def can_be_sampled(tensor: Any) -> bool:
    """Return whether a tensor is a plain floating-point one: no shard, placeholder or quantized weights."""
    import torch

    return bool(
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        and tensor.numel()
        and not tensor.is_meta
        and not tensor.is_sparse
    )
