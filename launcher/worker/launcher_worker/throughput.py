"""Tokens per second, and the share of the card's peak rate that a training reaches: model FLOP utilisation.

The cost of a token in floating-point operations follows from the matrices that it is multiplied with (Kaplan
et al. 2020, arXiv:2001.08361, section 2.1):

    2 M    forward, `M` the parameters of these matrices
    2 M    backward, for the gradients of activations
    2 T    backward, for the gradients of the `T` trained parameters among them
    2 F    forward through additional frozen models, such as a distillation's teacher

That is 6 M for a full fine-tune. Two costs are left out: the recomputation of activation checkpointing, and
the products inside attention. So the figure is a lower bound of the card's real rate. For `L` layers of width
`H` and sequences of `S` tokens the products inside attention cost `12 L H S` a token: a few percent if `S` is
below some thousand. Chowdhery et al. 2022, arXiv:2204.02311, appendix B, leave out only the recomputation.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

from .values import knobs


class Speedometer:
    """Counts the tokens of a training between two readings."""

    def __init__(self, model: Any = None, frozen: Sequence[Any] = ()) -> None:
        """Start at zero.

        `model` is trained; `frozen` models only run forward. Without a `model`, `read` returns no `mfu`.
        """
        self._flops = None if model is None else flops_per_token(model, frozen)
        self._tokens = 0
        self._began_s = time.monotonic()

    def add(self, tokens: int) -> None:
        """Count the tokens of a step, of all ranks."""
        self._tokens += tokens

    def restart(self) -> None:
        """Restart the clock and the count, to leave out the time so far, such as that of an evaluation."""
        self._tokens, self._began_s = 0, time.monotonic()

    def read(self) -> Dict[str, float]:
        """Return `tokens_per_s` since the last reading, `mfu` if model and card are known; {} without tokens."""
        tokens, seconds = self._tokens, time.monotonic() - self._began_s
        self.restart()
        if tokens <= 0 or seconds <= 0:
            return {}
        figures = {"tokens_per_s": tokens / seconds}
        peak = knobs().peak_tflops
        if self._flops is not None and peak is not None:
            figures["mfu"] = tokens / seconds * self._flops / (peak * 1e12 * knobs().peek.split.ranks)
        return figures


def flops_per_token(model: Any, frozen: Sequence[Any] = ()) -> Optional[float]:
    """Return the FLOPs of one token in forward and backward pass.

    None for models with experts, because a token passes only some of them, and for weights cut into shards.
    """
    if any(_has_experts(one) for one in (model, *frozen)):
        return None
    multiplied = trained = 0
    for size, is_trained in _matrices(model):
        multiplied += size
        trained += size if is_trained else 0
    asked = sum(size for one in frozen for size, _ in _matrices(one))
    return 4.0 * multiplied + 2.0 * trained + 2.0 * asked if multiplied else None


def _matrices(model: Any) -> Iterator[Tuple[int, bool]]:
    """Yield the size of each matrix that a token is multiplied with, and whether it is trained."""
    torch = sys.modules["torch"]
    seen = set()
    for module in model.modules():
        # looked up, not multiplied; a tied weight counts in the head
        if isinstance(module, torch.nn.Embedding):
            continue
        for weight in module.parameters(recurse=False):
            if weight.ndim < 2 or id(weight) in seen:
                continue
            seen.add(id(weight))
            is_packed = not weight.is_floating_point() and hasattr(module, "in_features")  # 4 bits a value
            size = module.in_features * module.out_features if is_packed else weight.numel()
            yield size, weight.requires_grad


def _has_experts(model: Any) -> bool:
    config = getattr(model, "config", None)
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    return any((getattr(config, name, None) or 0) > 1 for name in names)
