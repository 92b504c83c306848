"""False alarms of the guard: clean trainings that must not trip, a row a precision, a seed a training.

    python tests/bench/clean_seeds.py [SEEDS]     # 50 by default; about half a minute a row; 1 if any tripped

Each trains a LoRA over a tiny random Llama with a Trainer on this CPU, a card's precision rehearsed: warm-up from
zero, cosine, accumulation with a partial last batch, evaluation in between; half of the seeds in plain torch.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launcher" / "worker"))

import launcher_worker as worker
import torch
import transformers
from peft import LoraConfig, get_peft_model

STEPS = 30
RUNGS = {
    # name: mode, base, trainables, autocast, scaler, adam_eps
    "fp32": ("fp32", "float32", "float32", None, False, 1e-8),
    "bf16 autocast, bf16 base": ("bf16", "bfloat16", "float32", "bfloat16", False, 1e-8),
    "fp16 autocast + scaler, fp16 base": ("fp16", "float16", "float32", "float16", True, 1e-8),
    "fp16 autocast + scaler, fp32 base": ("fp16", "float32", "float32", "float16", True, 1e-8),
    "fp16-native": ("fp16-native", "float16", "float16", None, False, 1e-4),
}


def begin(folder: Path, name: str, seed: int) -> None:
    """Write the attempt that this process is in from now on."""
    mode, base, trainable, autocast, scaler, eps = RUNGS[name]
    precision = {"mode": mode, "device": "cuda", "capability": "8.0", "base_dtype": base, "tf32": False}
    precision |= {"trainable_dtype": trainable, "autocast_dtype": autocast, "scaler": scaler, "adam_eps": eps}
    attempt = {
        "run": "clean",
        "attempt": 1,
        "seed": seed,
        "method": "lora",
        "model": None,
        "data": {},
        "settings": {},
    }
    attempt |= {"steps": STEPS, "save_every_steps": None, "loader_workers": 0, "rehearsed": True}
    attempt["precision"] = {**precision, "why": "a clean seed"}
    attempt["split"] = {"global_batch": 8, "ranks": 1, "micro_batch": 4, "accumulation": 2}
    attempt["folders"] = {part: str(folder / part) for part in ("artifacts", "checkpoints", "cache")}
    place = folder / f"{mode}-{base}-{seed}"
    place.mkdir()
    (place / "attempt.json").write_text(json.dumps(attempt))
    os.environ["LAUNCH_ATTEMPT"] = str(place)


def make(seed: int) -> torch.nn.Module:
    """Make a model of this seed, with a LoRA, as the plan says."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=64, num_key_value_heads=2, **sizes)
    )
    model.to(worker.model_arguments()["dtype"])
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.1 * (seed % 2))
    return worker.prepare(get_peft_model(model, lora))


def rows(seed: int) -> list[dict[str, torch.Tensor]]:
    """Draw sequences that count up; 44 of them are no whole number of batches."""
    dice = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, 32, (44,), generator=dice)
    return [{"input_ids": one, "labels": one} for one in (start + torch.arange(12) for start in starts)]


def with_trainer(seed: int) -> list[float]:
    """Train with a Trainer; give the losses."""
    arguments = transformers.TrainingArguments(
        **worker.training_arguments(
            learning_rate=10 ** -(2 + seed % 3),
            lr_scheduler_type="cosine",
            warmup_steps=seed % 8,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=10,
            activation_checkpointing=seed % 4 == 0,
        )
    )
    data = rows(seed)
    trainer = transformers.Trainer(
        make(seed),
        arguments,
        train_dataset=data,
        eval_dataset=data[:8],
        callbacks=[worker.trainer_callback()],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def with_loop(seed: int) -> list[float]:
    """Train in plain torch; give the losses."""
    model, scaler = make(seed), worker.scaler()
    trainable = [one for one in model.parameters() if one.requires_grad]
    rate = 10 ** -(2 + seed % 3)
    optimizer = torch.optim.AdamW(trainable, lr=rate, eps=worker.knobs().precision.adam_eps)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, seed % 8, STEPS)
    losses = []
    model.train()
    for step, row in zip(range(1, STEPS + 1), itertools.cycle(rows(seed)), strict=False):
        with worker.autocast():
            loss = model(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        worker.log(step, loss=loss)
    return losses


def measure(task: tuple[str, int]) -> tuple[list[float], str]:
    """Train a row with a seed; give its losses, or why it tripped."""
    name, seed = task
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        begin(Path(folder), name, seed)
        try:
            losses = (with_loop if seed % 2 else with_trainer)(seed)
            worker.done(STEPS)
        except worker.Tripped as tripped:
            return [], f"{name}, seed {seed}: {tripped}"
        return losses, ""


def main() -> int:
    """Print the table; 1 if anything tripped."""
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    alarms = []
    table = ["| precision | seeds | false alarms | mean loss, first to last |", "| --- | --- | --- | --- |"]
    # A process for each training: what the worker hooks into torch is one for the process.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for name in RUNGS:
            found = pool.map(measure, [(name, seed) for seed in range(seeds)], chunksize=1)
            trained = [losses for losses, _ in found if losses]
            first, last = (sum(one[end] for one in trained) / len(trained) for end in (0, -1))
            tripped = [why for _, why in found if why]
            alarms += tripped
            table.append(f"| {name} | {seeds} | {len(tripped)} | {first:.3f} to {last:.3f} |")
    print("\n".join([*table, *alarms]))
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
