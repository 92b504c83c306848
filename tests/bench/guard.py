"""The guard's share of step time: how long training steps of a model of 100M parameters and more stay inside it.

    python tests/bench/guard.py        # a line of JSON a training: {"what", "parameters", "step_s", "share"}

Every way into the guard is timed from outside, hooks included; the batch is small, which is the hardest case.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launcher" / "worker"))

import launcher_worker as worker
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = 12
TOKENS = 64
WAYS_IN = ("see_forward", "before_step", "after_step", "after_update")


def clocked(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """Return the function, which now notes how long it takes."""

    def timed(*args: Any, **more: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **more)
        finally:
            spent.append(time.perf_counter() - began)

    return timed


def train(model: torch.nn.Module) -> Iterator[tuple[float, float]]:
    """Train; give for each step but the first, which chooses what to look at, its time and the guard's, in seconds."""
    model = worker.prepare(model)
    spent: list[float] = []
    guard = worker.guard.process_guard
    for name in WAYS_IN:
        setattr(guard, name, clocked(getattr(type(guard), name).__get__(guard), spent))
    optimizer = torch.optim.AdamW(
        [one for one in model.parameters() if one.requires_grad], lr=1e-4, foreach=True
    )
    model.train()
    for step in range(STEPS):
        began = time.perf_counter()
        tokens = torch.randint(0, 32000, (1, TOKENS))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        took = time.perf_counter() - began
        if step:
            yield took, sum(spent)
        spent.clear()


def main() -> None:
    """Measure a LoRA, which has many small trainables, and a full fine-tune, which has large ones."""
    torch.set_num_threads(1)
    sizes = {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    for what in ("LoRA", "full"):
        model = LlamaForCausalLM(LlamaConfig(vocab_size=32000, **sizes))
        parameters = sum(one.numel() for one in model.parameters())
        if what == "LoRA":
            model = get_peft_model(model, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
        steps = list(train(model))
        step_s = statistics.median(took for took, _ in steps)
        share = statistics.median(inside / took for took, inside in steps)
        print(
            json.dumps({"what": what, "parameters": parameters, "step_s": step_s, "share": share}), flush=True
        )


if __name__ == "__main__":
    main()
