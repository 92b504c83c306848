"""How the loss of a full fine-tune with bf16 weights follows that of fp32 weights: `rounding.py` prints a JSON line a training.

The demo's model learns its tags for 200 steps, at several learning rates and seeds: with float32 weights, with bf16 weights that are
rounded to the nearest number, and with the plan's `bf16-weights`, by the worker's own optimizer. All see the same examples.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launcher" / "worker"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))

import demo
import launcher_worker as worker
import torch
import transformers
from gradients import Form, Rung, enter_run
from rows import TAGS, read_rows
from shared import collate, encode

CACHE = Path(__file__).resolve().parents[2] / ".testbed"
STEPS, BATCH, WARMUP = 200, 16, 6
LAST = 20
RATES = (1e-5, 1e-4, 1e-3)
SEEDS = (0, 1, 2)


class Way(NamedTuple):
    """How weights are kept and updated."""

    name: str
    form: Form
    optimizer: Callable[..., Any]


def with_short_moments(parameters: Any, **own: Any) -> Any:
    """Return the optimizer of `bf16-weights` for other weights, which it does not round."""
    from torchao.optim import AdamW8bit

    return worker.restore_form(AdamW8bit(parameters, bf16_stochastic_round=True, **own))


_FP32 = Form("fp32", "float32", "float32", None, False, 1e-8)
_BF16_WEIGHTS = Form("bf16-weights", "bfloat16", "bfloat16", None, False, 1e-8)
WAYS = (
    Way("fp32", _FP32, worker.adamw),
    Way("fp32, moments of 8 bits", _FP32, with_short_moments),
    Way("bf16, rounded to the nearest", _BF16_WEIGHTS, torch.optim.AdamW),
    Way("bf16-weights", _BF16_WEIGHTS, worker.adamw),
)


class Training(NamedTuple):
    """One training: the mean loss of all its steps, and of the last ones."""

    way: str
    rate: float
    seed: int
    loss: float
    last: float


def train(parts: demo.Demo, rows: list[Any], way: Way, rate: float, seed: int) -> Training:
    """Train in one way under the attempt in force."""
    model = transformers.AutoModelForCausalLM.from_pretrained(parts.model, **worker.model_arguments())
    tokens = transformers.AutoTokenizer.from_pretrained(parts.model)
    worker.precision.preparation.convert_trainables(model)
    model.train()
    optimizer = way.optimizer(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, WARMUP, STEPS)
    dice, losses = random.Random(seed), []  # the same data each time
    for _ in range(STEPS):
        loss = model(**collate(dice.sample(rows, BATCH), tokens.pad_token_id)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Training(way.name, rate, seed, sum(losses) / STEPS, sum(losses[-LAST:]) / LAST)


def measure(rates: tuple[float, ...], seeds: tuple[int, ...]) -> Iterator[Training]:
    """Train in all ways at all rates with all seeds."""
    torch.set_num_threads(1)
    cache = os.environ.get("LAUNCH_TESTBED_CACHE") or str(CACHE)
    parts = demo.ensure(cache)
    tokens = transformers.AutoTokenizer.from_pretrained(parts.model)
    rows = [
        encode(tokens, {**row, "completion": TAGS.format(row["completion"])})
        for row in read_rows(parts.train).rows
    ]
    with tempfile.TemporaryDirectory() as folder:
        for rate in rates:
            for seed in seeds:
                for way in WAYS:
                    enter_run(Path(folder), Rung(way.form, way.name, is_automatic=False), "full")
                    yield train(parts, rows, way, rate, seed)


def main() -> None:
    """Print what is found as it is found; words are the rates, if not all."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    show = functools.partial(print, flush=True)
    for found in measure(tuple(map(float, sys.argv[1:])) or RATES, SEEDS):
        show(json.dumps(found._asdict()))


if __name__ == "__main__":
    main()
