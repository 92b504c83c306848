"""Figures of `launch check`: many scripts, of which a tenth have a problem."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, at_most
from testbed.client import LAUNCH, Client
from testbed.sshd import SshHost

FILES, LINES = 1_000, 300
TRIES = 3
MOST_S = 10.0
_HEAD = """import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("name", dtype=torch.{dtype})
"""
_FUNCTION = """
def step_{number}(batch, rate=0.1):
    total = 0
    for index, row in enumerate(batch):
        total += model(row)["loss"] * rate + index
    if total > {number}:
        print(f"large: {{total}} at {number}")
    return [total, *sorted(batch, key=lambda one: one["x"])]
"""
_TAIL = """
arguments = TrainingArguments("out", fp16=True)
Trainer(model=model, args=arguments, train_dataset=[]).train()
"""


def check(client: Client, _host: SshHost) -> Iterator[Figure]:
    """Measure a check of scripts that all make a Trainer, each time by a new process, and the mend of a tenth of them."""
    folder = client.project / "scripts"
    _write(folder)
    times = [_seconds(client, 1) for _ in range(TRIES)]
    yield at_most(
        f"`launch check` of {FILES:,} scripts of {LINES} lines, a tenth with a problem", times, MOST_S
    )
    yield at_most("… with `--fix`", [_seconds(client, 0, "--fix")], 2 * MOST_S)


def _write(folder: Path) -> None:
    size = _FUNCTION.count("\n")
    functions = "".join(_FUNCTION.format(number=number) for number in range((LINES - 7) // size))
    for number in range(FILES):
        path = folder / f"part{number % 20}" / f"train{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        dtype = "float32" if number % 10 else "float16"
        path.write_text(_HEAD.format(dtype=dtype) + functions + _TAIL)


def _seconds(client: Client, code: int, *words: str) -> float:
    """Return the time of `launch check`, which must exit with a code."""
    began = time.perf_counter()
    done = subprocess.run(
        [*LAUNCH, "check", *words, "scripts"],
        cwd=client.project,
        env=client.env,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == code, words
    return time.perf_counter() - began
