"""A 4-bit base model: the keywords that load it, and the settings of bitsandbytes' layers before training.

A layer dequantizes its weight to its `compute_dtype` and multiplies in that dtype, regardless of autocast.

On a CPU with AVX512-BF16, bitsandbytes repacks the weights during an evaluation, into a format for forward
passes without gradients. The weights stay packed, so later training steps send no gradient through them.
Measured with bitsandbytes 0.50.2: the cosine to the right gradient was then 0.24. So this module turns packing
off for a model in training.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Iterator, Set

from ..values import Knobs, knobs

_PACKS = "support_avx512bf16_for_cpu"


def quantized_loading(values: Knobs, device: str) -> Dict[str, object]:
    """Return the keywords of `from_pretrained` for the plan's quantized base; {} if the base is not quantized.

    transformers quantizes while it loads the model. The model stays on the device where it was loaded, which
    must be this rank's device.
    """
    precision = values.peek.precision
    if precision.quantization is None:
        return {}
    import torch
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=precision.quantization,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, precision.compute_dtype),
    )
    if device == "cuda":
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        place: Any = rank if rank < torch.cuda.device_count() else torch.cuda.current_device()
    else:
        place = device
    return {"quantization_config": config, "device_map": {"": place}}


def is_quantized(parameter: Any) -> bool:
    """Return whether a parameter holds a 4-bit layer's weights, packed into another dtype."""
    return getattr(parameter, "quant_state", None) is not None


def dtype_name(parameter: Any) -> str:
    """Return the name under which a parameter is counted: torch's name such as `bfloat16`, or `nf4`."""
    if is_quantized(parameter):
        return str(parameter.quant_type)
    return str(parameter.dtype).replace("torch.", "")


def set_up_layers(model: Any) -> Set[Any]:
    """Make 4-bit layers compute in the plan's dtype and pass gradients; return the replaced dtypes."""
    import torch

    planned = getattr(torch, knobs().peek.precision.compute_dtype)
    before = set()
    for layer in _layers(model):
        if getattr(layer, _PACKS, False):
            layer.state_dict()  # this unpacks weights that an evaluation has packed
            setattr(layer, _PACKS, False)
        if knobs().run is not None and layer.compute_dtype != planned:
            before.add(layer.compute_dtype)
            layer.compute_dtype, layer.compute_type_is_set = planned, True
    return before


def _layers(model: Any) -> Iterator[Any]:
    bitsandbytes = sys.modules.get("bitsandbytes")  # the package is loaded if a model has such layers
    if bitsandbytes is not None:
        yield from (one for one in model.modules() if isinstance(one, bitsandbytes.nn.Linear4bit))
