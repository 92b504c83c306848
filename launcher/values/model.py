"""What a model's own `config.json` says of it, as far as a plan hangs on it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from launcher.values.base import Record, Written
from launcher.values.precision import Dtype

Size = Annotated[int, Field(ge=1, le=2**40)]


class Model(Written):
    """A model: the dtype that it was saved in, its number of parameters, and its shape.

    The parameters are counted from the shape, as of a decoder; that may be a tenth off. `weight_bits` are those of a base
    that was saved quantized.
    """

    dtype: Dtype | None = None
    parameters: Size
    layers: Size
    hidden_size: Size
    head_dim: Size
    vocab_size: Size
    weight_bits: Annotated[int, Field(ge=1, le=16)] | None = None

    @property
    def billions(self) -> float:
        """The parameters in billions."""
        return self.parameters / 1e9


class _Config(Record):
    """The keys of a `config.json` that we read, by their names in transformers 5; `torch_dtype` is the older name."""

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
    tie_word_embeddings: bool = True
    model_type: str | None = None
    quantization_config: dict[str, Any] | None = None


CONFIG_KEYS = tuple(_Config.model_fields)
"""What a host is asked to tell of a `config.json`."""


def read_model(config: dict[str, Any] | None) -> Model | None:
    """Return what a model's `config.json` says; None for one that says too little, or for none."""
    if config is None:
        return None
    inner = config.get("text_config")
    try:
        told = _Config.lenient({**config, **(inner if isinstance(inner, dict) else {})})
    except ValidationError:
        return None
    head_dim = told.head_dim or max(1, told.hidden_size // told.num_attention_heads)
    queries = told.num_attention_heads * head_dim
    values = (told.num_key_value_heads or told.num_attention_heads) * head_dim
    experts = told.num_local_experts or told.num_experts or told.n_routed_experts or 1
    width = (told.moe_intermediate_size if experts > 1 else None) or told.intermediate_size
    matrices = 2 if told.model_type in _WITHOUT_GATE else 3
    attention = told.hidden_size * (2 * queries + 2 * values)
    mlp = matrices * told.hidden_size * (width or 4 * told.hidden_size) * experts
    embeddings = told.vocab_size * told.hidden_size * (1 if told.tie_word_embeddings else 2)
    try:
        return Model.model_validate(
            {
                "dtype": _dtype(told.dtype or told.torch_dtype),
                "parameters": told.num_hidden_layers * (attention + mlp) + embeddings,
                "layers": told.num_hidden_layers,
                "hidden_size": told.hidden_size,
                "head_dim": head_dim,
                "vocab_size": told.vocab_size,
                "weight_bits": _bits(told.quantization_config),
            }
        )
    except ValidationError:  # sizes beyond any model
        return None


def _bits(quantization: dict[str, Any] | None) -> int | None:
    """Return the bits of a quantized base: of bitsandbytes, or as GPTQ, AWQ and their kin say it."""
    if quantization is None:
        return None
    if quantization.get("load_in_4bit"):
        return 4
    if quantization.get("load_in_8bit"):
        return 8
    bits = quantization.get("bits")
    return bits if type(bits) is int and 1 <= bits <= 16 else 8


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


def _dtype(written: str | None) -> str | None:
    return written if written in ("float32", "float16", "bfloat16") else None
