"""What a plan needs to know about a model, read from its `config.json`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from launcher.values.base import Record, Written
from launcher.values.precision import Dtype

Size = Annotated[int, Field(ge=1, le=2**40)]


class Model(Written):
    """A model: the dtype that it was saved in, its number of parameters, and its shape.

    The parameters are computed from the shape of a decoder, which may be wrong by a tenth. `weight_bits` is the width of a
    base that was saved quantized.
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
    """The keys of a `config.json` that we read, as transformers 5 names them; `torch_dtype` is the old name of `dtype`."""

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
"""The keys of a `config.json` that a host returns."""


def read_model(config: dict[str, Any] | None) -> Model | None:
    """Return the model that a `config.json` describes; None without one, or if it lacks a needed key."""
    if config is None:
        return None
    inner = config.get("text_config")
    try:
        parsed = _Config.lenient({**config, **(inner if isinstance(inner, dict) else {})})
    except ValidationError:
        return None
    head_dim = parsed.head_dim or max(1, parsed.hidden_size // parsed.num_attention_heads)
    queries = parsed.num_attention_heads * head_dim
    values = (parsed.num_key_value_heads or parsed.num_attention_heads) * head_dim
    experts = parsed.num_local_experts or parsed.num_experts or parsed.n_routed_experts or 1
    width = (parsed.moe_intermediate_size if experts > 1 else None) or parsed.intermediate_size
    matrices = 2 if parsed.model_type in _WITHOUT_GATE else 3
    attention = parsed.hidden_size * (2 * queries + 2 * values)
    mlp = matrices * parsed.hidden_size * (width or 4 * parsed.hidden_size) * experts
    embeddings = parsed.vocab_size * parsed.hidden_size * (1 if parsed.tie_word_embeddings else 2)
    try:
        return Model.model_validate(
            {
                "dtype": _dtype(parsed.dtype or parsed.torch_dtype),
                "parameters": parsed.num_hidden_layers * (attention + mlp) + embeddings,
                "layers": parsed.num_hidden_layers,
                "hidden_size": parsed.hidden_size,
                "head_dim": head_dim,
                "vocab_size": parsed.vocab_size,
                "weight_bits": _bits(parsed.quantization_config),
            }
        )
    except ValidationError:  # sizes beyond any model
        return None


def _bits(quantization: dict[str, Any] | None) -> int | None:
    """Return the bits of a quantized base: as bitsandbytes writes it, or as GPTQ and AWQ do."""
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
