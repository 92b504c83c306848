"""The facts about a model that a plan needs, read from its `config.json`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from launcher.base.json_file import JsonObject
from launcher.values.base import Record, StrictModel
from launcher.values.precision import Dtype

Size = Annotated[int, Field(ge=1, le=2**40)]
Mlp = Literal["gated", "plain", "gelu_new"]
"""The kind of MLP: `gated`; `plain`, without a gate; `gelu_new`, without a gate, its GELU composed of many operations."""


OptionalSize = Annotated[Size | None, Field(exclude_if=lambda value: value is None)]
"""A size that is left out of JSON if it is None, so that plans of models without it are unchanged."""
QUANT_METHOD = r"^[a-z0-9_-]{1,32}$"


class Model(StrictModel):
    """A model: the dtype that it was saved in, its number of parameters, and its shape.

    The number of parameters is computed from the shape, as for a decoder; it may be wrong by a tenth.
    `weight_bits` are the bits of a weight in the linear layers of a base that was saved quantized, including
    its share of the scales. `query_size`, `key_value_size` and `mlp_size` are the elements per token of the
    queries, of the keys (the values have as many), and inside an MLP (of all experts that the token passes);
    `None` in older plans, which do not have them. `expert_parameters` are those of all routed experts, and
    `layer_embeddings` those of embeddings that belong to single layers (Gemma 3n). `quant_method` is the
    method by which the base was saved quantized. `expert_parameters`, `layer_embeddings` and `quant_method`
    are None in a model without them.
    """

    dtype: Dtype | None = None
    parameters: Size
    layers: Size
    hidden_size: Size
    head_dim: Size
    vocab_size: Size
    weight_bits: Annotated[float, Field(ge=1, le=32)] | None = None
    query_size: Size | None = None
    key_value_size: Size | None = None
    mlp_size: Size | None = None
    mlp: Mlp = "gated"
    is_tied: bool = True
    expert_parameters: OptionalSize = None
    layer_embeddings: OptionalSize = None
    quant_method: Annotated[
        str | None, Field(pattern=QUANT_METHOD, exclude_if=lambda value: value is None)
    ] = None

    @property
    def queries(self) -> int:
        """The elements of a token's queries in one layer."""
        return self.query_size or self.hidden_size

    @property
    def keys(self) -> int:
        """The elements of a token's keys in one layer; its values have as many."""
        return self.key_value_size or self.queries

    @property
    def mlp_width(self) -> int:
        """The elements inside an MLP for one token."""
        return self.mlp_size or 4 * self.hidden_size

    @property
    def embeddings(self) -> int:
        """The parameters of all embeddings, and of the head if it is not tied: a quantized base keeps them unquantized."""
        of_tokens = self.vocab_size * self.hidden_size * (1 if self.is_tied else 2)
        return min(of_tokens + (self.layer_embeddings or 0), self.parameters)

    @property
    def multiplied(self) -> int:
        """The parameters that a token is multiplied by: all but the input embedding, unless the output shares it."""
        parameters = self.parameters - (self.layer_embeddings or 0)
        return parameters - (0 if self.is_tied else min(self.vocab_size * self.hidden_size, parameters // 2))

    @property
    def billions(self) -> float:
        """The parameters in billions."""
        return self.parameters / 1e9


class _Config(Record):
    """The keys of a `config.json` that launch reads, as transformers 5 names them; `torch_dtype` is the old name of `dtype`."""

    dtype: str | None = None
    torch_dtype: str | None = None
    hidden_size: Size
    num_hidden_layers: Size
    vocab_size: Size
    intermediate_size: Size | None = None
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    num_local_experts: Size | None = None
    num_experts: Size | None = None
    n_routed_experts: Size | None = None
    moe_intermediate_size: Size | None = None
    num_experts_per_tok: Size | None = None
    max_position_embeddings: Size | None = None
    vocab_size_per_layer_input: Annotated[int, Field(ge=0, le=2**40)] | None = None
    hidden_size_per_layer_input: Annotated[int, Field(ge=0, le=2**40)] | None = None
    hidden_act: str | None = None
    activation_function: str | None = None
    tie_word_embeddings: bool = True
    model_type: str | None = None
    quantization_config: JsonObject | None = None


_OF_GPT2 = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
}
"""GPT-2's names for some keys, which similar models use too."""

CONFIG_KEYS = (*_Config.model_fields, *_OF_GPT2)
"""The keys of a `config.json` that a host returns."""


def read_model(config: JsonObject | None) -> Model | None:
    """Return the model that a `config.json` describes; None if it is missing or lacks a needed key."""
    if config is None:
        return None
    inner = config.get("text_config")
    renamed = {name: config[old] for old, name in _OF_GPT2.items() if config.get(old) is not None}
    try:
        parsed = _Config.lenient({**renamed, **config, **(inner if isinstance(inner, dict) else {})})
    except ValidationError:
        return None
    head_dim = parsed.head_dim or max(1, parsed.hidden_size // parsed.num_attention_heads)
    queries = parsed.num_attention_heads * head_dim
    values = (parsed.num_key_value_heads or parsed.num_attention_heads) * head_dim
    experts = parsed.num_local_experts or parsed.num_experts or parsed.n_routed_experts or 1
    width = (parsed.moe_intermediate_size if experts > 1 else None) or parsed.intermediate_size
    mlp = _mlp(parsed)
    matrices = 3 if mlp == "gated" else 2
    attention = parsed.hidden_size * (2 * queries + 2 * values)
    width = width or 4 * parsed.hidden_size
    mlps = matrices * parsed.hidden_size * width * experts
    embeddings = parsed.vocab_size * parsed.hidden_size * (1 if parsed.tie_word_embeddings else 2)
    learned = parsed.max_position_embeddings if parsed.model_type in _WITH_LEARNED_POSITIONS else None
    positions = (learned or 0) * parsed.hidden_size
    of_layers = (parsed.vocab_size_per_layer_input or 0) * (parsed.hidden_size_per_layer_input or 0)
    of_layers *= parsed.num_hidden_layers
    try:
        return Model.model_validate(
            {
                "dtype": _dtype(parsed.dtype or parsed.torch_dtype),
                "parameters": parsed.num_hidden_layers * (attention + mlps)
                + embeddings
                + of_layers
                + positions,
                "layers": parsed.num_hidden_layers,
                "hidden_size": parsed.hidden_size,
                "head_dim": head_dim,
                "vocab_size": parsed.vocab_size,
                "weight_bits": _bits(parsed.quantization_config),
                "query_size": queries,
                "key_value_size": values,
                "mlp_size": width * min(experts, parsed.num_experts_per_tok or 1),
                "mlp": mlp,
                "is_tied": parsed.tie_word_embeddings,
                "expert_parameters": parsed.num_hidden_layers * mlps if experts > 1 else None,
                "layer_embeddings": of_layers or None,
                "quant_method": _quant_method(parsed.quantization_config),
            }
        )
    except ValidationError:  # sizes larger than any model has
        return None


def _mlp(parsed: _Config) -> Mlp:
    if parsed.model_type not in _WITHOUT_GATE:
        return "gated"
    return "gelu_new" if (parsed.activation_function or parsed.hidden_act) == "gelu_new" else "plain"


BITSANDBYTES = "bitsandbytes"
NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)
"""The bits of a weight in bitsandbytes' NF4 with double quantization.

Each block of 64 weights has a scale of 8 bits. Every 256 of these scales share a second scale of 32 bits.
"""
_NF4_PLAIN_BITS = 4 + 32 / 64
"""The bits without double quantization: the scale of a block has 32 bits."""


def _bits(quantization: JsonObject | None) -> float | None:
    """Return the bits of a weight in a quantized base, including its share of the scales.

    Reads the settings of bitsandbytes, or those of GPTQ and AWQ.
    """
    if quantization is None or _quant_method(quantization) == DEQUANTIZED:
        return None
    if quantization.get("load_in_4bit"):
        return NF4_BITS if quantization.get("bnb_4bit_use_double_quant") else _NF4_PLAIN_BITS
    if quantization.get("load_in_8bit"):
        return 8
    bits, group = quantization.get("bits"), quantization.get("group_size")
    if type(bits) is not int or not 1 <= bits <= 16:
        return 8
    return bits + (16 + bits) / group if type(group) is int and group > 0 else bits


DEQUANTIZED = "mxfp4"
"""A base of this method is dequantized by transformers on loading, if the package `kernels` is missing.

Only a dequantized base can be trained.
"""


def _quant_method(quantization: JsonObject | None) -> str | None:
    """Return the quantization method of a saved base, by transformers' name; `unknown` if the settings name none."""
    if quantization is None:
        return None
    if quantization.get("load_in_4bit") or quantization.get("load_in_8bit"):
        return BITSANDBYTES
    said = quantization.get("quant_method")
    return said if isinstance(said, str) and re.fullmatch(QUANT_METHOD, said) else "unknown"


_WITHOUT_GATE = {
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "gpt_bigcode",
    "opt",
    "bloom",
    "mpt",
    "falcon",
    "phi",
    "starcoder2",
}


_WITH_LEARNED_POSITIONS = {"gpt2", "gpt_neo", "gpt_bigcode", "opt"}


def _dtype(written: str | None) -> str | None:
    return written if written in ("float32", "float16", "bfloat16") else None
