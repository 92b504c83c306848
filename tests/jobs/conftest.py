"""A project with `sft` as its own job, on a model and data so small that a training takes seconds."""

import importlib.util
import json
import shutil

import pytest
from testbed.client import REPOSITORY

JOB = """
name = "sft"
command = ["python", "sft.py"]
model = "./base"
method = "lora"
data = { train = "./rows.jsonl", eval = "./rows.jsonl" }
settings = { eval_limit = 2, max_new_tokens = 2, logging_steps = 1, lora_rank = 16, lora_dropout = 0.0 }
"""


@pytest.fixture
def sft_project(client):
    """A client whose project holds `sft`, its job file, a random model too small to learn much, and data."""
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    for name in ("sft.py", "demo.py"):
        shutil.copy(REPOSITORY / "jobs" / name, client.project)
    spec = importlib.util.spec_from_file_location("demo", client.project / "demo.py")
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    tokens = demo.tokenizer()
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokens), **shape))
    model.save_pretrained(client.project / "base")
    tokens.save_pretrained(client.project / "base")
    lines = [json.dumps({"prompt": f"{n} km in m?", "answer": n * 1000}) for n in range(20)]
    (client.project / "rows.jsonl").write_text("\n".join(lines))
    (client.project / "job.toml").write_text(JOB)
    return client
