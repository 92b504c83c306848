"""Models: from_pretrained loads in the plan's base dtype, and trained weights get the plan's trainable dtype.

The script decides whether its base is in 4 bits; the plan decides the compute dtype of a 4-bit base.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from ..channel import rank
from ..guard import process_guard
from ..guard.torch_hooks import forbid_casts
from ..precision.preparation import convert_trainables, set_up
from ..precision.quantization import is_quantized, set_up_layers
from ..shield import shielded
from ..values import knobs
from .changes import changes

autocasting_models: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""The models of a Trainer or an Accelerator, which handle autocast themselves."""
_QUANTIZED = ("quantization_config", "load_in_8bit")


@shielded
def adapt_loading(module: Any) -> None:
    """Make `from_pretrained` load in the plan's base dtype; `module` is transformers.modeling_utils."""
    kind = module.PreTrainedModel
    original = kind.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with shielded:
            kwargs = _planned(kwargs)
        loaded = original(cls, *args, **kwargs)
        with shielded:
            _compute_as_planned(loaded[0] if isinstance(loaded, tuple) else loaded)
        return loaded

    kind.from_pretrained = classmethod(from_pretrained)


def _planned(own: Any) -> Any:
    """Return a script's keywords with the plan's dtype, which for a 4-bit base is the dtype of its other weights.

    A model with another quantization keeps the script's dtype.
    """
    import torch

    is_in_4_bits = own.get("load_in_4bit") or _says_4_bits(own.get("quantization_config"))
    if not is_in_4_bits and any(own.get(name) for name in _QUANTIZED):
        changes.leave("the dtype of a quantized model")
        return own
    precision = knobs().precision  # reading it consumes the knob
    base = precision.base_dtype
    if is_in_4_bits and not knobs().trains_adapter and precision.autocast_dtype == "bfloat16":
        base = "bfloat16"  # the planned dtype is for trained weights, but a 4-bit base is frozen
    dtype = getattr(torch, base)
    name = "torch_dtype" if "torch_dtype" in own else "dtype"
    changes.change("from_pretrained", name, own.get(name), dtype)
    attention = knobs().peek.precision.attention
    if attention != "sdpa" and not knobs().rehearsed:
        changes.change("from_pretrained", "attn_implementation", own.get("attn_implementation"), attention)
        own = {**own, "attn_implementation": attention}
    return {**own, name: dtype}


def _says_4_bits(config: Any) -> bool:
    """Return whether a quantization is bitsandbytes' 4-bit one; a script passes an object or a dictionary."""
    says = config.get("load_in_4bit") if isinstance(config, dict) else getattr(config, "load_in_4bit", False)
    return bool(says)


def _compute_as_planned(model: Any) -> None:
    """Make the 4-bit layers of a loaded model compute in the plan's dtype, even if it was saved with another."""
    import torch

    for before in set_up_layers(model):
        planned = getattr(torch, knobs().peek.precision.compute_dtype)
        changes.change("from_pretrained", "bnb_4bit_compute_dtype", before, planned)


def adapt_model(model: Any) -> bool:
    """Make a model of the script safe to train at the plan's precision, in place, and put it under the guard.

    Call it before the first step: the conversion does not harm an optimizer that has no state yet. Return
    whether trainables had another dtype than the plan's.
    """
    import torch

    values = knobs()
    values.consume("precision")
    if not any(part.requires_grad for part in model.parameters()):
        return False
    converted = convert_trainables(model)
    if converted:
        count = "1 tensor is" if converted == 1 else f"{converted} tensors are"
        changes.add(f"trainable weights: {count} {_dtype(values)} now")
    base = getattr(torch, values.peek.precision.base_dtype)
    frozen = {
        part.dtype
        for part in model.parameters()
        if not part.requires_grad and part.is_floating_point() and not is_quantized(part)
    }
    if values.peek.precision.quantization and not any(map(is_quantized, model.parameters())):
        changes.leave(
            f"a base that is not quantized, where the plan has {values.peek.precision.quantization}"
        )
    for other in sorted(frozen - {base}, key=str):
        changes.leave(
            f"frozen weights of {str(other).replace('torch.', '')}, where the plan has {values.peek.precision.base_dtype}"
        )
    set_up(model)
    process_guard.watch(model)
    forbid_casts(model, instead=_leave_out_cast)
    return bool(converted)


def _dtype(values: Any) -> str:
    precision = values.peek.precision
    return "float32" if precision.scaler else str(precision.trainable_dtype)


def _leave_out_cast() -> None:
    if rank() == 0:
        changes.add("a cast of the model while it is trained: left out")
