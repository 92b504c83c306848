"""Tiny language models, their tokenizer, and texts that count up: what cases with transformers, peft and TRL share."""

from __future__ import annotations

from typing import Any

import launcher_worker as worker
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

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


def token_rows(count: int = 64, length: int = 12) -> list[dict[str, Any]]:
    """Return the same texts as tokens, with labels."""
    words = tokenizer()
    rows = [torch.tensor(words(text)["input_ids"]) for text in counting(count, length)["text"]]
    return [{"input_ids": row, "labels": row} for row in rows]


def fit_with_trainer(model: Any, **own: Any) -> list[float]:
    """Train on the texts with a plain Trainer as the plan says, and return the loss of each step."""
    keywords = {"learning_rate": 1e-2, "lr_scheduler_type": "constant", "logging_steps": 1, **own}
    trainer = Trainer(
        model,
        TrainingArguments(**worker.training_arguments(**keywords)),
        train_dataset=token_rows(),
        eval_dataset=token_rows(8),
        callbacks=[worker.trainer_callback()],
    )
    trainer.train()
    return logged_losses(trainer)


def logged_losses(trainer: Any) -> list[float]:
    """Return the loss of each step that a Trainer has logged."""
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def lora(model: Any, **own: Any) -> Any:
    """Put a small LoRA on all linear layers."""
    settings = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **own}
    return get_peft_model(model, LoraConfig(**settings))
