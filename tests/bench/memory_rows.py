"""The trainings whose memory is measured: small ones, in every form that differs in what is kept."""

from __future__ import annotations

from typing import NamedTuple

LLAMA = {"model_type": "llama", "vocab_size": 4000, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
         "num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": False}  # fmt: skip
TIED = {**LLAMA, "tie_word_embeddings": True, "vocab_size": 8000, "num_key_value_heads": 6}
SMALL = {**LLAMA, "vocab_size": 2000, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2}
LARGE = {**LLAMA, "hidden_size": 288, "intermediate_size": 768, "num_hidden_layers": 6}
GPT2 = {"model_type": "gpt2", "vocab_size": 4000, "n_embd": 192, "n_layer": 4, "n_head": 6, "n_positions": 1024, "activation_function": "gelu_new",
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
GELU = {**GPT2, "activation_function": "gelu"}
TEACHER = {**LLAMA, "hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 12}

FORMS = {
    "fp32": ("fp32", "float32", "float32", None, False),
    "bf16, fp32 base": ("bf16", "float32", "float32", "bfloat16", False),
    "bf16, bf16 base": ("bf16", "bfloat16", "float32", "bfloat16", False),
    "fp16, fp32 base": ("fp16", "float32", "float32", "float16", True),
    "fp16, fp16 base": ("fp16", "float16", "float32", "float16", True),
    "bf16-weights": ("bf16-weights", "bfloat16", "bfloat16", None, False),
    "fp16-native": ("fp16-native", "float16", "float16", None, False),
}
"""Mode, dtypes of base and trainables, autocast's dtype, scaler: what a `Precision` on a card may be."""


class Row(NamedTuple):
    """A training: `settings` are a job's, and `micro_batch` samples are one micro-batch."""

    title: str
    config: dict[str, object]
    method: str
    form: str
    settings: dict[str, bool | int | float | str] = {}
    micro_batch: int = 2
    attention: str = "sdpa"

    @property
    def is_bf16(self) -> bool:
        """Whether it computes in bf16."""
        return self.form.startswith("bf16")


CHECKPOINTED: dict[str, bool | int | float | str] = {"gradient_checkpointing": True}
TAUGHT: dict[str, bool | int | float | str] = {"teacher": "org/teacher"}

PLANNED: dict[str, bool | int | float | str] = {"optim": "auto"}

ROWS = (
    Row("Llama", LLAMA, "full", "fp32"),
    Row("Llama", LLAMA, "full", "bf16, fp32 base"),
    Row("Llama", LLAMA, "full", "fp16, fp32 base"),
    Row("Llama", LLAMA, "full", "fp16-native"),
    Row("Llama", LLAMA, "lora", "fp32"),
    Row("Llama", LLAMA, "lora", "bf16, bf16 base"),
    Row("Llama", LLAMA, "lora", "bf16, fp32 base"),
    Row("Llama", LLAMA, "lora", "fp16, fp16 base"),
    Row("Llama", LLAMA, "lora", "fp16, fp32 base"),
    Row("Llama", LLAMA, "lora", "fp16-native"),
    Row("Llama, tied embeddings", TIED, "full", "bf16, fp32 base"),
    Row("Llama, tied embeddings", TIED, "lora", "fp16, fp32 base"),
    Row("GPT-2", GPT2, "full", "fp32"),
    Row("GPT-2", GPT2, "full", "bf16, fp32 base"),
    Row("GPT-2", GPT2, "lora", "fp16, fp16 base"),
    Row("GPT-2", GPT2, "lora", "bf16, fp32 base"),
    Row("GPT-2, plain GELU", GELU, "full", "fp16, fp32 base"),
    Row("GPT-2, plain GELU", GELU, "lora", "fp32"),
    Row("Llama, checkpointing", LLAMA, "full", "fp32", CHECKPOINTED, 4),
    Row("Llama, checkpointing", LLAMA, "full", "bf16, fp32 base", CHECKPOINTED, 4),
    Row("Llama, checkpointing", LLAMA, "lora", "fp16, fp16 base", CHECKPOINTED, 4),
    Row("GPT-2, checkpointing", GPT2, "lora", "bf16, fp32 base", CHECKPOINTED, 4),
    Row("Llama, one short sample", LLAMA, "full", "bf16, fp32 base", {"max_length": 64}, 1),
    Row("Llama, SGD", LLAMA, "full", "fp32", {"optim": "sgd"}),
    Row("Llama, Adafactor", LLAMA, "full", "bf16, fp32 base", {"optim": "adafactor"}),
    Row("Llama, one short sample, Adafactor", LLAMA, "full", "fp32", {"optim": "adafactor", "max_length": 64}, 1),
    Row("Llama, fused AdamW, one short sample", LLAMA, "full", "fp32", {"optim": "adamw_torch_fused", "max_length": 64}, 1),
    Row("Llama, rank 64", LLAMA, "lora", "fp16, fp16 base", {"lora_rank": 64}),
    Row("Llama, eager attention", LLAMA, "lora", "bf16, bf16 base", {}, 2, "eager"),
    Row("Llama, taught", LLAMA, "full", "bf16, fp32 base", TAUGHT),
    Row("Llama, taught", LLAMA, "lora", "fp16, fp16 base", TAUGHT),
    Row("Llama", LLAMA, "qlora", "fp32"),
    Row("Llama", LLAMA, "qlora", "bf16, bf16 base"),
    Row("Llama", LLAMA, "qlora", "fp16, fp16 base"),
    Row("Llama", LLAMA, "qlora", "fp16, fp32 base"),
    Row("Llama, tied embeddings", TIED, "qlora", "bf16, bf16 base"),
    Row("Llama, checkpointing", LLAMA, "qlora", "fp16, fp16 base", CHECKPOINTED, 4),
    Row("Llama, the plan's optimizer", LLAMA, "full", "bf16-weights", PLANNED),
    Row("Llama, the plan's optimizer, one short sample", LLAMA, "full", "bf16-weights", {**PLANNED, "max_length": 64}, 1),
    Row("Llama, the plan's optimizer, checkpointing", LLAMA, "full", "bf16-weights", {**PLANNED, **CHECKPOINTED}, 4),
    *(
        Row(f"Llama of {size}", config, method, "bf16, fp32 base" if method == "full" else "bf16, bf16 base", {}, 1)
        for size, config in (("0.6 M", SMALL), ("3 M", LLAMA), ("8 M", LARGE))
        for method in ("full", "lora", "qlora")
    ),
)  # fmt: skip
IN_CI = (21, 29, 34, *range(40, 49))
"""Which rows every test run measures: three methods at three sizes, and what differs most."""
IN_REHEARSALS = (1, 19, 41, 45)
"""Which rows a rehearsal of `make gpu` measures, each in a process of its own."""

WIDE = {**LLAMA, "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 4}  # fmt: skip
WIDE_GPT2 = {**GPT2, "vocab_size": 32000, "n_embd": 1024, "n_layer": 16, "n_head": 16}
LONG: dict[str, bool | int | float | str] = {"max_length": 1024}

ON_A_CARD = (
    Row("Llama", WIDE, "full", "fp32", LONG),
    Row("Llama", WIDE, "full", "bf16, fp32 base", LONG, 4),
    Row("Llama", WIDE, "full", "fp16, fp32 base", LONG),
    Row("Llama", WIDE, "full", "fp16-native", LONG),
    Row("Llama, the plan's optimizer", WIDE, "full", "bf16-weights", {**LONG, **PLANNED}),
    Row("Llama, the plan's optimizer, one short sample", WIDE, "full", "bf16-weights", {**PLANNED, "max_length": 64}, 1),
    Row("Llama", WIDE, "lora", "fp32", LONG),
    Row("Llama", WIDE, "lora", "bf16, bf16 base", LONG, 4),
    Row("Llama", WIDE, "lora", "fp16, fp32 base", LONG),
    Row("GPT-2", WIDE_GPT2, "full", "bf16, fp32 base", LONG),
    Row("GPT-2", WIDE_GPT2, "lora", "fp16, fp16 base", LONG),
    Row("Llama, checkpointing", WIDE, "full", "bf16, fp32 base", {**LONG, **CHECKPOINTED}, 4),
    Row("Llama, fused AdamW, one short sample", WIDE, "full", "fp32", {"optim": "adamw_torch_fused", "max_length": 64}, 1),
    Row("Llama, tied embeddings", {**WIDE, "vocab_size": 64000, "tie_word_embeddings": True}, "lora", "bf16, bf16 base", LONG),
    Row("Llama", WIDE, "qlora", "bf16, bf16 base", LONG, 4),
    Row("Llama, checkpointing", WIDE, "qlora", "bf16, bf16 base", {**LONG, **CHECKPOINTED}, 4),
    Row("Llama, checkpointing", WIDE, "lora", "bf16, bf16 base", {**LONG, **CHECKPOINTED}, 4),
)  # fmt: skip
"""What `make gpu` measures: large enough that what a card's libraries keep for themselves does not count."""
