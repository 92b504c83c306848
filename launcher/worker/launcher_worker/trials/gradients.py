"""The cosine between a step's gradient and that of fp32, from a sample of both.

The fp32 trial writes the samples of its held steps into a folder; the later trials read them.
"""

from __future__ import annotations

import math
import os
from typing import Any, Iterable, List, Optional

MAX_ELEMENTS = 1 << 20


def sample(optimizer: Any) -> Any:
    """Return elements of all gradients of an optimizer, evenly spread, as one float32 tensor on the CPU.

    None if the optimizer has no gradient, or a gradient that is not a plain tensor.
    """
    import torch

    gradients = [part.grad for part in _parameters(optimizer) if part.grad is not None]
    if not gradients or any(type(one) is not torch.Tensor or one.is_sparse for one in gradients):
        return None
    elements = sum(one.numel() for one in gradients)
    # An odd stride reaches every column of a matrix, whose width is even.
    stride = 1 if elements <= MAX_ELEMENTS else (elements // MAX_ELEMENTS) | 1
    rows = [one.detach().flatten()[::stride].to("cpu", torch.float32) for one in gradients]
    return torch.cat(rows)


def write(folder: str, step: int, elements: Any) -> None:
    """Save the sample of a step."""
    import torch

    os.makedirs(folder, exist_ok=True)
    torch.save(elements, _path(folder, step))


def cosine_to_reference(folder: str, step: int, elements: Any) -> Optional[float]:
    """Return the cosine between a sample and the fp32 sample of the same step.

    The result is 0 for a gradient that is not finite, because it has no direction. None if the fp32 sample of
    that step is missing, not finite or of another size, or if either sample is zero.
    """
    import torch

    path = _path(folder, step)
    if not os.path.exists(path):
        return None
    reference = torch.load(path, map_location="cpu", weights_only=True)
    if reference.shape != elements.shape:
        return None
    first, second = elements.double(), reference.double()
    norm, wanted = float(first.norm()), float(second.norm())
    if not math.isfinite(wanted) or wanted == 0 or norm == 0:
        return None
    return float(first @ second) / (norm * wanted) if math.isfinite(norm) else 0.0


def _path(folder: str, step: int) -> str:
    return os.path.join(folder, "gradient-%d.pt" % step)


def _parameters(optimizer: Any) -> Iterable[Any]:
    parameters: List[Any] = [part for group in optimizer.param_groups for part in group["params"]]
    return parameters
