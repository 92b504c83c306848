"""The programs of `jobs/` as modules, for the folder is no package, and small models and data for them."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

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
