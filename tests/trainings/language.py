"""Tiny language models, their tokenizer, and texts that count up: what cases with transformers, peft and TRL share."""

from __future__ import annotations

from typing import Any

import launcher_worker as worker
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NUMBERS = 48
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose words are the numbers below 48."""
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *map(str, range(NUMBERS))))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def llama(**changes: Any) -> Any:
    """Return a tiny Llama with random weights, in the dtype that the plan loads models in."""
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": NUMBERS + len(SPECIAL),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_position_embeddings": 64,
    }
    dtype = next(iter(worker.model_arguments().values()))
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).to(dtype)


def counting(count: int = 64, length: int = 12) -> Dataset:
    """Return texts that count up from somewhere."""
    starts = torch.randint(0, NUMBERS - length, (count,), generator=torch.Generator().manual_seed(0))
    rows = [" ".join(str(start + place) for place in range(length)) for start in starts.tolist()]
    return Dataset.from_dict({"text": rows})
