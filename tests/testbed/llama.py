"""A small model of Llama's kind, as from_pretrained finds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def save_small_llama(folder: Path, change: Callable[[Any], None] | None = None) -> None:
    """Save the same small random model each time, after a change to its weights; skip the test without torch."""
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=None, eos_token_id=1,
        )  # fmt: skip
        model = LlamaForCausalLM(config)
        if change is not None:
            change(model)
        model.save_pretrained(folder)
