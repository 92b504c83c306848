"""The programs of `jobs/` as modules, for the folder is no package, and small models and data for them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from testbed.warm_python import WarmPython

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "launcher" / "worker"


def load(name: str):
    """Load a program, with the worker and the other programs beside it."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "jobs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)  # dataclasses look the module up
        patch.syspath_prepend(str(WORKER))
        patch.syspath_prepend(str(ROOT / "jobs"))
        spec.loader.exec_module(module)
    return module


def save_model(folder, seed, hidden_size=16, layers=1):
    """Save a random model, and the demo's tokenizer, into a folder."""
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = load("demo").tokenizer()
    shape = {
        "hidden_size": hidden_size, "intermediate_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2,
        "pad_token_id": tokens.pad_token_id, "eos_token_id": tokens.eos_token_id, "bos_token_id": None,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(LlamaConfig(vocab_size=len(tokens), **shape)).save_pretrained(folder)
    tokens.save_pretrained(folder)


def write_rows(path, numbers):
    """Write questions about these numbers."""
    lines = [json.dumps({"prompt": f"{n} km in m?", "answer": n * 1000}) for n in numbers]
    path.write_text("\n".join(lines))


def run_job(
    python: WarmPython,
    folder: Path,
    *words: str,
    ends_with: int = 0,
    precision: dict[str, object] | None = None,
    **values: object,
) -> subprocess.CompletedProcess[str]:
    """Run a script for a job in a folder, where its attempt is described: in fp32 on the CPU, unless told."""
    names = ("artifacts", "checkpoints", "cache")
    attempt = {
        "run": "test", "attempt": 1, "seed": 0, "model": str(folder / "base"), "save_every_steps": None, "loader_workers": 0,
        "folders": {name: str(folder / name) for name in names},
        "precision": {
            "mode": "fp32", "device": "cpu", "base_dtype": "float32", "trainable_dtype": "float32", "autocast_dtype": None,
            "scaler": False, "tf32": False, "adam_eps": 1e-8, "why": "a test", **(precision or {}),
        },
        **values,
    }  # fmt: skip
    for name in names:
        (folder / name).mkdir(exist_ok=True)
    (folder / "attempt.json").write_text(json.dumps(attempt))
    done = python.run(*words, folder=folder, variables={"LAUNCH_ATTEMPT": str(folder)})
    assert done.returncode == ends_with, done.stdout + done.stderr
    return done


def noted(folder: Path, kind: str, rank: int = 0) -> list[dict[str, Any]]:
    """Return what tests/jobs/noted.py has noted of a kind, in all starts of a run."""
    lines = map(json.loads, (folder / f"events{rank}").read_text().splitlines())
    return [values for name, values in lines if name == kind]


def begins(folder: Path) -> list[int]:
    """Return after which step each start of a run began."""
    return [line["values"]["step"] for line in noted(folder, "begin")]


def figures(folder: Path, *names: str) -> dict[tuple[int, str], float]:
    """Return the figures with these names that a run has logged, by step; a later one counts."""
    return {
        (line["step"], name): line["values"][name]
        for line in noted(folder, "metric")
        for name in names
        if name in line["values"]
    }
