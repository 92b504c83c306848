"""What a step of each job does, without an agent: how often the host waits for the card, how often a layer is computed, what it goes on from.

The jobs are forked from a Python that has imported their libraries.
"""

import importlib.util
import json
import shutil
import signal
from pathlib import Path

import pytest
from testbed.job_programs import begins, figures, run_job, save_model, write_rows

if importlib.util.find_spec("peft") is None:
    pytest.skip("the training libraries are not installed", allow_module_level=True)
pytestmark = pytest.mark.training

STEPS, EVERY = 12, 5
GUARD = {"readings.figures": 1}
"""The guard's one reading of a step: on a card it is under way for a step, so that nothing waits."""
LINES = {"distill": {"distill.read": 2}}
"""What a line of metrics reads: the losses, and the norm of the gradient."""
NOTED = Path(__file__).with_name("noted.py")
COUNTED = """
import atexit, runpy, sys, torch
from transformers.models.llama import modeling_llama
plain, calls = modeling_llama.LlamaMLP.forward, []
def counted(self, *words, **more):
    if self.training and torch.is_grad_enabled():
        calls.append(1)
    return plain(self, *words, **more)
modeling_llama.LlamaMLP.forward = counted
atexit.register(lambda: open("ledger", "w").write(str(len(calls))))
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
"""
PLAIN = 'import runpy, sys\nrunpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)\n'


def run(python, folder, script, job, method, precision, data=("train", "eval"), ends_with=0, **more):
    """Run a script for a job in a folder, with small models and data; return what it printed."""
    save_model(folder / "base", seed=0)
    save_model(folder / "teacher", seed=1, hidden_size=32)
    write_rows(folder / "rows.jsonl", range(40))
    given = {"teacher": str(folder / "teacher"), "data": dict.fromkeys(data, str(folder / "rows.jsonl"))}
    words = (script, job, "1")[: 3 if script == NOTED.name else 2]
    return run_job(
        python, folder, *words, ends_with=ends_with, precision=precision, method=method, **given, **more
    ).stdout


@pytest.mark.parametrize(("job", "method"), [("distill", "full")])
def test_a_step_waits_for_nothing_but_its_line_of_metrics(python, tmp_path, job, method):
    """Two micro-batches a step, of different lengths, with padding; no line of metrics comes with most steps."""
    shutil.copy(Path(__file__).with_name("waiting.py"), tmp_path)
    printed = run(
        python, tmp_path, "waiting.py", job, method, {"device": "cuda", "capability": "8.0"}, rehearsed=True, guard="warn",
        steps=STEPS, split={"global_batch": 8, "ranks": 1, "micro_batch": 4, "accumulation": 2},
        settings={"logging_steps": EVERY, "optim": "adamw_torch"},  # a fused one is for real devices
    )  # fmt: skip
    found = json.loads(printed.splitlines()[-1])
    assert len(found) == STEPS + 1
    is_logged = [number % EVERY == 0 for number in range(1, STEPS + 1)]
    for step, now in list(enumerate(is_logged))[2 : STEPS - 1]:
        assert found[step] == {**GUARD, **(LINES[job] if now else {})}, step


@pytest.mark.parametrize("job", ["sft", pytest.param("distill", marks=pytest.mark.long)])
def test_a_job_takes_checkpointing_from_the_plan(python, tmp_path, job):
    """The witness counts in the model itself: two steps of two micro-batches, in one layer, which sees each twice."""
    (tmp_path / "train.py").write_text(COUNTED)
    for again, calls in ((False, 4), (True, 8)):
        run(
            python, tmp_path, "train.py", job, "lora", {"device": "cpu"}, steps=2, activation_checkpointing=again,
            split={"global_batch": 4, "ranks": 1, "micro_batch": 2, "accumulation": 2}, settings={"eval_limit": 2, "logging_steps": 1},
        )  # fmt: skip
        assert int((tmp_path / "ledger").read_text()) == calls


@pytest.mark.parametrize(
    ("method", "kept"), [("lora", "adapter"), pytest.param("full", "model", marks=pytest.mark.long)]
)
def test_sft_ends_with_artifacts_and_a_result(python, tmp_path, method, kept):
    """Each method saves what it trained, sealed checkpoints, and the scores."""
    (tmp_path / "train.py").write_text(PLAIN)
    run(
        python, tmp_path, "train.py", "sft", method, {"device": "cpu"}, steps=4, save_every_steps=2,
        split={"global_batch": 4, "ranks": 1, "micro_batch": 2, "accumulation": 2},
        settings={"logging_steps": 1, "eval_limit": 3, "max_new_tokens": 4, "answer_tags": True, "generate": "tags"},
    )  # fmt: skip
    assert list((tmp_path / "artifacts" / kept).glob("*.safetensors"))
    result = json.loads((tmp_path / "artifacts" / "result.json").read_text())
    assert result.keys() == {
        "steps",
        "loss_first",
        "loss_last",
        "eval_loss",
        "perplexity",
        "accuracy",
        "answer_rate",
    }
    assert (result["steps"], result["accuracy"]) == (4, 0.0)
    sealed = (tmp_path / "checkpoints").glob("*/manifest.json")
    assert sorted(path.parent.name for path in sealed) == ["checkpoint-2", "checkpoint-4"]


def test_distill_killed_and_resumed_ends_as_the_unbroken_one_did(python, tmp_path):
    """The same weights, bit by bit, and the same figures: with dropout, from a checkpoint between two evaluations."""
    settings = {
        "logging_steps": 1, "eval_steps": 4, "learning_rate": 1e-2, "kl_weight": 0.9, "scheduler": "cosine", "lora_dropout": 0.2,
    }  # fmt: skip
    plan = {
        "steps": STEPS, "save_every_steps": EVERY, "settings": settings,
        "split": {"global_batch": 4, "ranks": 1, "micro_batch": 4, "accumulation": 1},
    }  # fmt: skip
    folders = plain, killed = tmp_path / "plain", tmp_path / "killed"
    for folder in folders:
        folder.mkdir()
        shutil.copy(NOTED, folder)
    words = (NOTED.name, "distill", "lora", {"device": "cpu"})
    run(python, plain, *words, **plan)
    (killed / "kill").write_text("7 0")
    run(python, killed, *words, **plan, ends_with=-signal.SIGKILL)
    (killed / "kill").unlink()
    saved = killed / "checkpoints" / f"step-{EVERY}"
    run(python, killed, *words, **plan, checkpoint={"path": str(saved), "step": EVERY})
    assert begins(killed) == [0, EVERY]
    names = ("loss", "kl", "grad_norm", "eval_loss")
    assert figures(killed, *names) == figures(plain, *names)
    assert len(figures(plain, *names)) > 3 * STEPS
    student, other = (next(folder.glob("artifacts/*/*.safetensors")).read_bytes() for folder in folders)
    assert student == other
