"""How often a step of each job makes the host wait for the card."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.job_programs import ROOT, WORKER, save_model, write_rows

if importlib.util.find_spec("peft") is None:
    pytest.skip("the training libraries are not installed", allow_module_level=True)
pytestmark = pytest.mark.training

STEPS, EVERY = 12, 5
GUARD = {"readings.figures": 1}
"""The guard's one reading of a step: on a card it is under way for a step, so that nothing waits."""
LINES = {
    "sft": {"trainer._maybe_log_save_evaluate": 2},
    "distill": {"distill.read": 2},
}
"""What a line of metrics reads: the losses, and the norm of the gradient."""


def reads(folder, job, method):
    """Run a job on tensors without values; return what was read after each step, and up to the end of the next one."""
    save_model(folder / "base", seed=0)
    save_model(folder / "teacher", seed=1, hidden_size=32)
    write_rows(folder / "rows.jsonl", range(40))
    rows = str(folder / "rows.jsonl")
    data = {"train": rows, "eval": rows} if job == "distill" else {"train": rows}
    settings = {"logging_steps": EVERY, "optim": "adamw_torch"}  # a fused one is for real devices
    attempt = {
        "run": "waiting", "attempt": 1, "seed": 0, "rehearsed": True, "guard": "warn", "method": method,
        "model": str(folder / "base"), "teacher": str(folder / "teacher"), "data": data, "settings": settings,
        "steps": STEPS, "save_every_steps": None, "loader_workers": 0,
        "split": {"global_batch": 8, "ranks": 1, "micro_batch": 4, "accumulation": 2},
        "folders": {name: str(folder / name) for name in ("artifacts", "checkpoints", "cache")},
        "precision": {
            "mode": "fp32", "device": "cuda", "capability": "8.0", "base_dtype": "float32", "trainable_dtype": "float32",
            "autocast_dtype": None, "scaler": False, "tf32": False, "adam_eps": 1e-8, "why": "meta has no autocast",
        },
    }  # fmt: skip
    (folder / "attempt.json").write_text(json.dumps(attempt))
    path = os.pathsep.join(map(str, (WORKER, ROOT / "jobs")))
    environment = {**os.environ, "LAUNCH_ATTEMPT": str(folder), "PYTHONPATH": path}
    environment.pop("LAUNCH_SOCKET", None)
    words = [sys.executable, str(Path(__file__).with_name("waiting.py")), job]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("job", "method"), [("sft", "lora"), pytest.param("distill", "full", marks=pytest.mark.long)]
)
def test_a_step_waits_for_nothing_but_its_line_of_metrics(tmp_path, job, method):
    """Two micro-batches a step, of different lengths, with padding; no line of metrics comes with most steps."""
    found = reads(tmp_path, job, method)
    assert len(found) == STEPS + 1
    is_logged = [number % EVERY == 0 for number in range(1, STEPS + 1)]
    # Trainer writes its line after the end of its step, so that it is seen with the next one.
    logged = [False, *is_logged] if job == "sft" else is_logged
    for step, now in list(enumerate(logged))[2 : STEPS - 1]:
        assert found[step] == {**GUARD, **(LINES[job] if now else {})}, step
