"""Models with random weights, and examples, made on this machine; and how large everything is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from testbed.job_programs import load

PROMPT = 8
"""The length of a prompt, in tokens, which are characters."""


class Shape(NamedTuple):
    """The shape of a Llama."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tie_word_embeddings: bool = False


class Sizes(NamedTuple):
    """How large everything is. `warm_steps` are left out of a median, `rounds` are those of a launch that is timed."""

    small: Shape
    teacher: Shape
    billion: Shape
    tokens: int
    billion_tokens: int
    examples: int
    billion_examples: int
    micro: int
    steps: int
    warm_steps: int
    billion_steps: int
    rounds: int


ON_A_CARD = Sizes(
    small=Shape(768, 2048, 12, 12, 12, 32_000),
    teacher=Shape(1024, 2816, 16, 16, 16, 32_000),
    billion=Shape(2048, 8192, 16, 32, 8, 128_256, tie_word_embeddings=True),  # as Llama 3.2 1B
    tokens=512, billion_tokens=1024, examples=32, billion_examples=32, micro=16, steps=30, warm_steps=8, billion_steps=16,
    rounds=3,
)  # fmt: skip
WITHOUT_BF16 = ON_A_CARD._replace(steps=20, billion_examples=8)
"""Less work for an older card. It emulates bf16, in which transformers' defaults train a model that was saved in it."""
ON_A_CPU = Sizes(
    small=Shape(32, 64, 2, 4, 4, 64),
    teacher=Shape(48, 96, 2, 4, 4, 64),
    billion=Shape(32, 128, 2, 8, 2, 128, tie_word_embeddings=True),
    tokens=64, billion_tokens=64, examples=4, billion_examples=4, micro=2, steps=6, warm_steps=1, billion_steps=4, rounds=1,
)  # fmt: skip


def save_llama(folder: Path, shape: Shape, dtype: str = "float32") -> Path:
    """Save a model with random weights, and a tokenizer that makes a token of a character; return its folder.

    It is made on the CPU: a context of this process on the card would lock trainings out of an exclusive one.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = load("demo").tokenizer()
    ids = {"pad_token_id": tokens.pad_token_id, "eos_token_id": tokens.eos_token_id, "bos_token_id": None}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**shape._asdict(), **ids, max_position_embeddings=2048))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder


def born_in_bf16(model: Path) -> Path:
    """Return a copy of a model that says it was saved in bf16; its weights stay what they are."""
    target = model.with_name(f"{model.name}-bf16")
    shutil.copytree(model, target)
    config: dict[str, Any] = json.loads((target / "config.json").read_text())
    config.pop("torch_dtype", None)
    (target / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    return target


def write_rows(folder: Path, count: int, tokens: int, *, is_text: bool = False) -> tuple[Path, Path]:
    """Write examples of exactly so many tokens; return the file, and one in the order in which seed 0 draws them for a pass.

    They count upwards, each from a number of its own, so that there is something to learn. `is_text`: for a distillation.
    """
    make = _text if is_text else _question
    lines = [json.dumps(make(number, tokens)) + "\n" for number in range(count)]
    plain, drawn = (folder / f"rows-{tokens}-{is_text:d}{kind}.jsonl" for kind in ("", "-drawn"))
    plain.write_text("".join(lines))
    drawn.write_text("".join(lines[place] for place in load("shared").order_of(count, 0, 0)))
    return plain, drawn


def _text(number: int, tokens: int) -> dict[str, str]:
    return {"text": _counting(number, tokens - 1)}  # and the end mark


def _question(number: int, tokens: int) -> dict[str, str]:
    length = tokens - PROMPT - len("\n<answer></answer>") - 1
    return {"prompt": f"{number:0{PROMPT}}", "answer": _counting(number, length)}


def _counting(number: int, length: int) -> str:
    text = " ".join(str(more) for more in range(number, number + length))
    return f"{text[: length - 1]}."  # an answer is stripped
