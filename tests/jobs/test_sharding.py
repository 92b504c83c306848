"""A model divided among ranks, by FSDP2 over gloo: the losses of one rank, a resume that changes nothing, a model that is whole.

Cards are not here: that the shares are on them, and what memory they save, is not shown.
"""

import importlib.util
import json
import shutil
import signal
from pathlib import Path

import pytest
from testbed.job_programs import begins, figures, noted, run_job, save_model, write_rows

if importlib.util.find_spec("trl") is None:
    pytest.skip("the training libraries are not installed", allow_module_level=True)
pytestmark = pytest.mark.training

NOTED = Path(__file__).with_name("noted.py")
STEPS, EVERY = 8, 3
SETTINGS = {
    "logging_steps": 1, "learning_rate": 1e-3, "warmup_steps": 0, "weight_decay": 0.01, "neftune_noise": 0.0, "max_new_tokens": 3,
    "generate": "text", "eval_share": 0.15,
}  # fmt: skip


def train(python, folder, *, ranks=1, sharding=False, ends_with=0, **more):
    """Train all weights by sft in a folder: 16 of 34 rows a step, held-out rows that two ranks cannot share equally."""
    if not (folder / "base").exists():
        folder.mkdir(exist_ok=True)
        save_model(folder / "base", seed=0, layers=2)
        write_rows(folder / "rows.jsonl", range(40))
        shutil.copy(NOTED, folder)
    split = {"global_batch": 16, "ranks": ranks, "micro_batch": 4, "accumulation": 4 // ranks}
    values = {"steps": STEPS, "save_every_steps": EVERY, "split": split, "sharding": sharding, **more}
    data = {"train": str(folder / "rows.jsonl")}
    run_job(
        python, folder, NOTED.name, "sft", str(ranks), ends_with=ends_with, method="full", data=data, settings=SETTINGS, **values
    )  # fmt: skip


def test_a_divided_model_trains_as_a_whole_one_and_resumes(python, tmp_path):
    """Two ranks: each weight is divided, the losses are those of one rank, also after a kill, and transformers loads the model."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    one, whole, killed = (tmp_path / name for name in ("one", "whole", "killed"))
    train(python, one)
    train(python, whole, ranks=2, sharding=True)
    for rank in (0, 1):
        seen = noted(whole, "micro-batch", rank)
        assert len(seen) == 2 * STEPS
        assert all(batch["shards"] == batch["weights"] > 10 for batch in seen)
    assert not any(batch["shards"] for batch in noted(one, "micro-batch"))
    names = ("loss", "grad_norm", "eval_loss")
    assert len(figures(whole, *names)) == 2 * STEPS + 2
    assert figures(whole, *names) == pytest.approx(figures(one, *names), abs=2e-6)

    killed.mkdir()
    (killed / "kill").write_text("5 1")
    train(python, killed, ranks=2, sharding=True, ends_with=-signal.SIGKILL)
    (killed / "kill").unlink()
    (checkpoint,) = (killed / "checkpoints").glob("*/manifest.json")
    resumed = {"step": json.loads(checkpoint.read_text())["step"], "path": str(checkpoint.parent)}
    assert len(list(checkpoint.parent.glob("optimizer/*.distcp"))) == 2
    train(python, killed, ranks=2, sharding=True, checkpoint=resumed)
    assert begins(killed) == [0, EVERY]
    assert figures(killed, *names) == figures(whole, *names)

    saved, other = (load_file(folder / "artifacts/model/model.safetensors") for folder in (killed, whole))
    assert saved.keys() == other.keys() == load_file(one / "base/model.safetensors").keys()
    assert all(saved[name].equal(other[name]) for name in saved)
    model = AutoModelForCausalLM.from_pretrained(killed / "artifacts/model")
    tokenizer = AutoTokenizer.from_pretrained(killed / "artifacts/model")
    samples = [json.loads(line) for line in (killed / "artifacts/samples.jsonl").read_text().splitlines()]
    last = [sample for sample in samples if sample["step"] == STEPS]
    assert len(last) == 6
    for sample in last:
        tokens = tokenizer(sample["prompt"], return_tensors="pt", return_token_type_ids=False)
        made = model.generate(**tokens, max_new_tokens=3, do_sample=False)[0, tokens["input_ids"].shape[1] :]
        assert tokenizer.decode(made, skip_special_tokens=True) == sample["output"]


@pytest.mark.long
def test_its_checkpoint_is_resumed_on_one_card_too(python, tmp_path):
    """A run that moves to a larger card: the optimizer's shares are put together."""
    one, moved = tmp_path / "one", tmp_path / "moved"
    train(python, one)
    moved.mkdir()
    (moved / "kill").write_text("5 1")
    train(python, moved, ranks=2, sharding=True, ends_with=-signal.SIGKILL)
    (moved / "kill").unlink()
    saved = {"step": EVERY, "path": str(moved / "checkpoints" / f"checkpoint-{EVERY}")}
    train(python, moved, checkpoint=saved)
    assert begins(moved) == [0, EVERY]
    assert figures(moved, "loss") == pytest.approx(figures(one, "loss"), abs=2e-6)
