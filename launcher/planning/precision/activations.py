"""Estimate a decoder layer's activations that are kept for the backward pass: bytes per token, from its shape.

Every term comes from counting the tensors that autograd keeps in transformers' modules, see
`tests/bench/memory.py`.
"""

from __future__ import annotations

from launcher.values.job import Method, trains_adapter
from launcher.values.model import Model
from launcher.values.precision import Precision

LINEARS = {"gated": 7, "plain": 4, "gelu_new": 4}
"""The number of a decoder layer's linear layers that get an adapter, by its kind of MLP.

In models whose MLP has no gate, queries, keys and values share one linear layer.
"""
_INPUT_COPIES = {"gated": 5, "plain": 2, "gelu_new": 2}
"""The number of linear layers that read the normalized hidden state; autocast makes a half-precision copy for each."""
_MLP_TENSORS = {"gated": 4, "plain": 2, "gelu_new": 5}
"""The number of tensors of the MLP's width that are kept for the backward pass."""
_GELU_NEW_AUTOCAST = 16
"""The bytes per element of `gelu_new`'s five tensors under autocast: two in half precision, three in float32.

Autocast runs torch.pow in float32.
"""


def layer_bytes(model: Model, method: Method, precision: Precision, lora_rank: int, length: int) -> float:
    """Return the memory that a layer keeps for the backward pass, in bytes per token. `length`: a sample's tokens."""
    return (
        _norms(model, method, precision)
        + _inputs(model, method, precision)
        + _attention(model, precision, length)
        + _mlp(model, precision)
        + (LINEARS[model.mlp] * lora_rank * compute_bytes(precision) if trains_adapter(method) else 0)
    )


def passing_bytes(model: Model, precision: Precision) -> float:
    """Return the additional memory of a layer's backward pass, in bytes per token: gradients of the MLP's width."""
    return 2 * model.mlp_width * compute_bytes(precision)


def stream_bytes(precision: Precision) -> int:
    """Return the bytes of an element of the hidden state between layers: autocast keeps it in the base's dtype."""
    return 4 if precision.base_dtype == "float32" else 2


def compute_bytes(precision: Precision) -> int:
    """Return the bytes of an element inside a layer."""
    return 4 if (precision.autocast_dtype or precision.base_dtype) == "float32" else 2


def adapter_parameters(model: Model, rank: int) -> int:
    """Return the number of parameters of an adapter of this rank on all linear layers of the decoder."""
    hidden, queries, keys = model.hidden_size, model.queries, model.keys
    if model.mlp == "gated":
        widths = 2 * (hidden + queries) + 2 * (hidden + keys) + 3 * (hidden + model.mlp_width)
    else:
        widths = (hidden + queries + 2 * keys) + (hidden + queries) + 2 * (hidden + model.mlp_width)
    return rank * widths * model.layers


def _norms(model: Model, method: Method, precision: Precision) -> float:
    """Return the bytes of the two norms: their inputs, and for a full fine-tune with a gated MLP also their results."""
    is_native = precision.autocast_dtype is None and compute_bytes(precision) == 2
    if model.mlp != "gated":
        return 2 * model.hidden_size * (2 if is_native else 4)
    results = 2 * model.hidden_size * (2 if is_native else 4) if not trains_adapter(method) else 0
    return 2 * model.hidden_size * 4 + results


def _inputs(model: Model, method: Method, precision: Precision) -> float:
    """Return the bytes of the inputs of attention and MLP.

    Under autocast these are half-precision copies: one for each linear layer, and one more for an adapter.
    """
    if precision.autocast_dtype is None:
        return 2 * model.hidden_size * compute_bytes(precision)
    output = 2 * model.queries if trains_adapter(method) else 0
    return 2 * _INPUT_COPIES[model.mlp] * model.hidden_size + output


def _attention(model: Model, precision: Precision, length: int) -> float:
    """Return the bytes of attention: queries, keys, values and result.

    Without a fused kernel also the attention weights, which grow with the length.
    """
    kept = (2 * model.queries + 2 * model.keys) * compute_bytes(precision)
    if precision.attention != "eager":
        return kept
    heads = max(1, model.queries // model.head_dim)
    return kept + heads * length * (4 if compute_bytes(precision) == 4 else 6)


def _mlp(model: Model, precision: Precision) -> float:
    """Return the bytes that the MLP keeps.

    A 4-bit layer returns its input's dtype, so over a float32 base only the last tensor is in half precision.
    """
    is_quantized = precision.quantization is not None or model.weight_bits is not None
    if is_quantized and precision.autocast_dtype is not None and precision.base_dtype == "float32":
        return (4 * (_MLP_TENSORS[model.mlp] - 1) + 2) * model.mlp_width
    if model.mlp == "gelu_new" and precision.autocast_dtype is not None:
        return _GELU_NEW_AUTOCAST * model.mlp_width
    return _MLP_TENSORS[model.mlp] * model.mlp_width * compute_bytes(precision)
