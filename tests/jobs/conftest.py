"""Projects with `sft` and `distill` as their own jobs, on models and data so small that a training takes seconds."""

import os
import shutil

import pytest
from testbed.client import REPOSITORY
from testbed.job_programs import ROOT, WORKER, save_model, write_rows
from testbed.warm_python import WarmPython

LIBRARIES = "import datasets, peft, torch, trl; from transformers import LlamaForCausalLM, Trainer; from trl import SFTTrainer"

SFT = """
name = "sft"
command = ["python", "sft.py"]
model = "./base"
method = "lora"
data = { train = "./rows.jsonl", eval = "./rows.jsonl" }
settings = { eval_limit = 2, max_new_tokens = 2, logging_steps = 1, lora_rank = 16, lora_dropout = 0.0, answer_tags = true, generate = "tags" }
"""
DISTILL = """
name = "distill"
command = ["python", "distill.py"]
model = "./base"
teacher = "./teacher"
data = { train = "./rows.jsonl", eval = "./held.jsonl" }
[settings]
logging_steps = 1
eval_steps = 4
learning_rate = 1e-2
kl_weight = 0.9
scheduler = "cosine"
lora_dropout = 0.0
"""


@pytest.fixture(scope="session")
def python():
    """A Python that has imported the libraries of the jobs."""
    path = os.pathsep.join(map(str, (WORKER, ROOT / "jobs")))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCH_")}
    started = WarmPython({**kept, "PYTHONPATH": path}, LIBRARIES)
    yield started
    started.end()


def copy_programs(folder):
    """Copy the included jobs into a project, as code of its own."""
    for program in (REPOSITORY / "jobs").glob("*.py"):
        shutil.copy(program, folder)


@pytest.fixture
def sft_project(client):
    """A client whose project holds `sft`, its job file, a random model too small to learn much, and data."""
    copy_programs(client.project)
    save_model(client.project / "base", seed=0)
    write_rows(client.project / "rows.jsonl", range(20))
    (client.project / "job.toml").write_text(SFT)
    return client


@pytest.fixture
def distill_project(client):
    """A client whose project holds `distill`, its job file, a random student and a larger random teacher, and data."""
    copy_programs(client.project)
    save_model(client.project / "base", seed=0)
    save_model(client.project / "teacher", seed=1, hidden_size=32, layers=2)
    write_rows(client.project / "rows.jsonl", range(20))
    write_rows(client.project / "held.jsonl", range(700, 707))
    (client.project / "job.toml").write_text(DISTILL)
    return client
