"""Time, tokens and memory of the steps of a trial."""

from __future__ import annotations

import sys
import time
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from ..unsaved_hook import UnsavedHook
from ..values import knobs

GB = 1e9


class StepMeter:
    """Measures the training steps of a model between two moments."""

    def __init__(self, model: Any) -> None:
        """Count the examples and tokens that pass forward through a model from now on."""
        self._model = model
        self._tokens: Any = 0
        self._examples = self._steps = 0
        self._began_s: Optional[float] = None
        self._seconds = 0.0
        model.register_forward_pre_hook(UnsavedHook(self._see_forward), with_kwargs=True)

    def begin(self) -> None:
        """Begin to measure, after the device has finished earlier work."""
        wait_for(_device_of(self._model))
        _forget_peak(self._model)
        self._tokens = self._examples = self._steps = 0
        self._began_s = time.monotonic()

    def count_step(self) -> None:
        """Count a step, if measuring has begun."""
        self._steps += self._began_s is not None

    def end(self) -> None:
        """End measuring, after the device has finished the steps."""
        wait_for(_device_of(self._model))
        if self._began_s is not None:
            self._seconds = time.monotonic() - self._began_s

    def figures(self) -> Dict[str, float]:
        """Return the seconds per step, and the tokens and examples per second, as far as they were measured."""
        if not self._steps or self._seconds <= 0:
            return {}
        ranks = knobs().peek.split.ranks
        tokens = float(self._tokens) * ranks
        found: Dict[str, float] = {"step_s": self._seconds / self._steps}
        if self._examples:
            found["examples_per_s"] = self._examples * ranks / self._seconds
        if tokens:
            found["tokens_per_s"] = tokens / self._seconds
        return found

    def _see_forward(self, module: Any, arguments: Tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        import torch

        if (
            self._began_s is None or not torch.is_grad_enabled()
        ):  # in eval mode too: a script may train without model.train()
            return
        tensors = [value for value in (*arguments, *keywords.values()) if isinstance(value, torch.Tensor)]
        self._examples += tensors[0].shape[0] if tensors and tensors[0].dim() else 0
        mask, tokens = keywords.get("attention_mask"), keywords.get("input_ids")
        if isinstance(mask, torch.Tensor) and mask.dim() == 2:
            # the sum stays on its device, so that the host does not wait
            self._tokens = self._tokens + mask.sum()
        elif isinstance(tokens, torch.Tensor):
            padding = getattr(getattr(module, "config", None), "pad_token_id", None)
            count = tokens.numel() if padding is None else (tokens != padding).sum()
            self._tokens = self._tokens + count


def _forget_peak(model: Any) -> None:
    """Reset the peak, because loading a model may take more memory than training it."""
    import torch

    if _device_of(model) == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_memory(model: Any) -> Dict[str, Union[str, float]]:
    """Return the peak memory of this process on the model's device, in GB, and the kind of memory.

    On CUDA: the memory of tensors, and the memory that the allocator held for them. On a CPU: the whole
    process with its libraries, since its start. An Apple GPU does not record a peak: {}.
    """
    device = _device_of(model)
    if device == "cuda":
        import torch

        held, taken = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
        return {"memory_of": "card", "peak_gb": taken / GB, "held_gb": held / GB}
    if device == "cpu":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return {
            "memory_of": "process",
            "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GB,
        }
    return {}


def wait_for(device: str) -> None:
    """Wait until a device has finished its work."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def _device_of(model: Any) -> str:
    parameter = next(iter(model.parameters()), None)
    return "cpu" if parameter is None else str(parameter.device.type)
