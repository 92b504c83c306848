"""Models: half-precision weights are loaded in the half precision of the card, and trained ones get the plan's dtype.

A model is loaded before the script says which weights it trains. So its weights keep the width that the script asked
for, and those of a frozen base keep it for good. The script also decides whether its base is in 4 bits; the plan
decides the compute dtype of a 4-bit base.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Optional

from ..channel import rank
from ..guard import process_guard
from ..guard.torch_hooks import forbid_casts
from ..precision.preparation import convert_trainables, is_half, set_up
from ..precision.quantization import is_quantized, set_up_layers
from ..shield import shielded
from ..values import knobs
from .changes import changes

autocasting_models: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""The models of a Trainer or an Accelerator, which handle autocast themselves."""
_SHARDING = {"torch.distributed.fsdp": "FSDP", "deepspeed": "DeepSpeed"}
"""The package of a sharded model's class -> the name of its library."""
_QUANTIZED = ("quantization_config", "load_in_8bit")


@shielded
def adapt_loading(module: Any) -> None:
    """Make `from_pretrained` load weights that the card can compute with; `module` is transformers.modeling_utils."""
    kind = module.PreTrainedModel
    original = kind.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with shielded:
            kwargs = _planned(kwargs)
        loaded = original(cls, *args, **kwargs)
        with shielded:
            model = loaded[0] if isinstance(loaded, tuple) else loaded
            _compute_as_planned(model)
            _convert_half(model)
        return loaded

    kind.from_pretrained = classmethod(from_pretrained)


def _planned(own: Any) -> Any:
    """Return a script's keywords with the plan's dtype if it is known that the base is frozen, and with its attention.

    For a 4-bit base it is the dtype of the weights that are not in 4 bits. A model with another quantization keeps the
    script's dtype.
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
    if is_in_4_bits or knobs().trains_adapter:
        dtype = getattr(torch, base)
        name = "torch_dtype" if "torch_dtype" in own else "dtype"
        changes.change("from_pretrained", name, own.get(name), dtype)
        own = {**own, name: dtype}
    attention = knobs().peek.precision.attention
    if attention != "sdpa" and not knobs().rehearsed:
        changes.change("from_pretrained", "attn_implementation", own.get("attn_implementation"), attention)
        own = {**own, "attn_implementation": attention}
    return own


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


def _convert_half(model: Any) -> None:
    """Convert half-precision weights and buffers to the half precision that the plan computes in, or to float32.

    Quantized weights, and those that are on no device yet, stay as they are.
    """
    if getattr(model, "is_quantized", False):
        return
    target = _frozen_dtype()
    for tensor in (*model.parameters(), *model.buffers()):
        if is_half(tensor) and tensor.dtype != target and not tensor.is_meta:
            changes.change("from_pretrained", "dtype", tensor.dtype, target)
            tensor.data = tensor.data.to(target)


def adapt_model(model: Any) -> bool:
    """Make a model of the script safe to train at the plan's precision, in place, and put it under the guard.

    Call it before the first step: the conversion does not harm an optimizer that has no state yet. Return
    whether trainables had another dtype than the plan's.
    """
    values = knobs()
    values.consume("precision")
    if not any(part.requires_grad for part in model.parameters()):
        return False
    frozen = {
        part.dtype
        for part in model.parameters()
        if not part.requires_grad and part.is_floating_point() and not is_quantized(part)
    }
    converted = convert_trainables(model, _frozen_dtype() if _frozen_dtype() in frozen else None)
    if converted:
        count = "1 tensor is" if converted == 1 else f"{converted} tensors are"
        changes.add(f"trainable weights: {count} {_dtype(values)} now")
    precision = values.peek.precision
    if precision.quantization and not any(map(is_quantized, model.parameters())):
        changes.leave(f"a base that is not quantized, where the plan has {precision.quantization}")
    for other in sorted(frozen - {_named(precision.base_dtype), _frozen_dtype()}, key=str):
        changes.leave(
            f"frozen weights of {str(other).replace('torch.', '')}, where the plan has {precision.base_dtype}"
        )
    if precision.autocast_dtype is None:
        for buffer in model.buffers():
            if is_half(buffer):
                buffer.data = buffer.data.float()
    set_up(model)
    process_guard.watch(model)
    forbid_casts(model, instead=_leave_out_cast)
    return bool(converted)


def sharding_library(model: Any) -> Optional[str]:
    """Return the library that shards a model over its ranks, and so handles precision itself; None without one."""
    for module in model.modules():
        for kind in type(module).__mro__:
            for package, library in _SHARDING.items():
                if kind.__module__.startswith(package):
                    return library
    return None


def _frozen_dtype() -> Any:
    """Return the dtype of frozen half-precision weights: the one that the plan computes in."""
    return _named(knobs().peek.precision.autocast_dtype or "float32")


def _named(dtype: str) -> Any:
    import torch

    return getattr(torch, dtype)


def _dtype(values: Any) -> str:
    precision = values.peek.precision
    return "float32" if precision.scaler else str(precision.trainable_dtype)


def _leave_out_cast() -> None:
    if rank() == 0:
        changes.add("a cast of the model while it is trained: left out")
