"""How much of a card's memory a training needs: an estimate from the model's shape, to choose rung and micro-batch.

Sources: 16 bytes a parameter for float32 weights, gradients and Adam's two moments; 34 bytes a token, layer and hidden
unit for half activations without an attention matrix (Korthikanti et al., 2022, table 2), twice that in float32.
"""

from __future__ import annotations

from typing import Literal

from launcher.values.model import Model
from launcher.values.precision import Precision
from launcher.values.profile import Profile

GB = 1e9
USABLE = 0.9
"""The share of a card's memory that a plan uses. The rest is for CUDA itself, fragmentation and a margin of error."""
ADAPTER_SHARE = 0.02
"""LoRA's trainables as a share of the base's parameters, rounded up: rank 16 on all linear layers is 1 to 2 %."""

QUANTIZED_MORE = 1.2
"""The factor on a quantized base's bits, for scales and for the layers that are not quantized."""

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def weights_gb(model: Model, method: Literal["lora", "full"], precision: Precision) -> float:
    """Return the memory of weights, gradients and Adam's moments, in GB."""
    trained = 4 * _BYTES[precision.trainable_dtype]
    if method == "full":
        return model.parameters * trained / GB
    base = model.weight_bits / 8 * QUANTIZED_MORE if model.weight_bits else _BYTES[precision.base_dtype]
    return model.parameters * (base + ADAPTER_SHARE * trained) / GB


def sample_gb(model: Model, precision: Precision, tokens: int) -> float:
    """Return the memory of one sample in the forward and backward pass, in GB; `tokens` is its length."""
    is_half = "float32" not in (precision.autocast_dtype or precision.base_dtype)
    layers = (34 if is_half else 68) * model.layers * model.hidden_size
    logits = (
        10 if is_half else 12
    ) * model.vocab_size  # as computed, in float32 for the loss, and their gradient
    return tokens * (layers + logits) / GB


def usable_gb(profile: Profile) -> float | None:
    """Return how much memory of one card a plan uses, in GB; None if the card's memory is unknown."""
    return None if profile.memory_gb is None else profile.memory_gb * USABLE


def needed_gb(model: Model, method: Literal["lora", "full"], precision: Precision, tokens: int) -> float:
    """Return the memory of a training with a micro-batch of one, in GB."""
    return weights_gb(model, method, precision) + sample_gb(model, precision, tokens)
