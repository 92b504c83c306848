"""Training scripts that know nothing of launch, as people have them, and the check that their weights come home."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable

from testbed.client import REPOSITORY, Client

PLAIN = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
inputs = torch.randn(64, 8)
for step in range(1, 21):
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
torch.save(model.state_dict(), "model.pt")
"""

TRAINER = """
from rows import rows  # a module of the project, which travels with it
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

small = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
)
arguments = TrainingArguments(
    "out", max_steps=4, save_steps=2, logging_steps=1, report_to=[], per_device_train_batch_size=2, use_cpu=True
)
trainer = Trainer(LlamaForCausalLM(small), arguments, train_dataset=rows)
trainer.train()
trainer.save_model("out/final")
"""

ROWS = """
import torch

rows = [{"input_ids": torch.arange(8) + row, "labels": torch.arange(8) + row} for row in range(16)]
"""

WEIGHTS = {"plain.py": "model.pt", "hf.py": "out/final/model.safetensors"}
"""Where each script saves its weights."""


def write_scripts(client: Client) -> None:
    """Put the scripts into a client's project, each with a job file that names what the job `sft` needs too."""
    requirements = tomllib.loads((REPOSITORY / "jobs" / "sft.toml").read_text())["requirements"]
    client.script(PLAIN, "plain.py")
    client.script(TRAINER, "hf.py")
    client.script(ROWS, "rows.py")
    for name in WEIGHTS:
        job = f'name = "{name[:-3]}"\ncommand = ["python", "{name}"]\nrequirements = {json.dumps(requirements)}\n'
        client.script(job, f"{name[:-3]}.toml")


def weights_come_home(client: Client, host: str, digest_there: Callable[[str, str], str]) -> None:
    """Launch each script as a user would, and compare its weights here with those on the host.

    `digest_there` returns the SHA-256 of a file of a run's code folder by the host's own tools.
    """
    for script, weights in WEIGHTS.items():
        before = {path.name for path in client.runs.glob("[0-9]*")}
        said = client.seen("--host", host, "--job", f"./{script[:-3]}.toml", timeout=300)
        (run,) = {path.name for path in client.runs.glob("[0-9]*")} - before
        here = client.runs / run / "outputs" / weights
        assert f"runs/{run}/outputs/{weights}" in said
        assert hashlib.sha256(here.read_bytes()).hexdigest() == digest_there(run, weights)
        checkpoints = list((client.runs / run).rglob("checkpoint-*"))
        assert not checkpoints
        assert ("out/checkpoint-4" in said) == (script == "hf.py")
        assert ("by the start-up hook" in said) == (script == "hf.py")
