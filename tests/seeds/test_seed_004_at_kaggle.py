"""Seed 004 was reported from Kaggle: a distillation in fp16 that ended in the scaler. As the job `distill` it trains there.

The account is the stand-in's, the plan that of Kaggle's two T4, rehearsed in a session without a card. The witnesses are the
training's own output, and the student that came home, read by transformers.
"""

import json
import math

import pytest
from testbed.job_programs import save_model, write_rows

pytestmark = [pytest.mark.training, pytest.mark.testbed]

STEPS = 12
EVERY = 6
WORDS = (
    *("--job", "distill", "--host", "k", "--profile", "t4x2", "--rehearse"),
    *("--set", "model=./student", "--set", "teacher=./teacher"),
    *("--set", "data.train=./rows.jsonl", "--set", "data.eval=./held.jsonl"),
    *("--set", f"steps={STEPS}", "--set", "settings.learning_rate=1e-2", "--set", "settings.logging_steps=1"),
    *("--set", f"settings.eval_steps={EVERY}", "--set", "batch.global=8"),
)


@pytest.fixture
def project(kaggle_account):
    """Alice's project: a random student, a larger random teacher, and data."""
    folder = kaggle_account.client.project
    save_model(folder / "student", seed=0)
    save_model(folder / "teacher", seed=1, hidden_size=32, layers=2)
    write_rows(folder / "rows.jsonl", range(20))
    write_rows(folder / "held.jsonl", range(700, 707))
    kaggle_account.host(accelerator=None)
    return kaggle_account


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "base", "title"),
    [("full", "fp32", "fp32 weights"), ("lora", "fp16", "fp16 base, fp32 adapters")],
    ids=["full", "lora"],
)
def test_it_is_distilled_in_fp16_with_its_scaler(project, method, base, title):
    """On the first rung, by what was observed too; every loss is finite, a better student comes out, and comes home."""
    client = project.client
    said = client.seen(*WORDS, "--set", f"method={method}", timeout=400)
    runs = sorted(client.runs.glob("[0-9]*"))
    assert len(runs) == 1, said
    run = runs[0]
    assert f"2 x T4 16 GB, rehearsed on a CPU · fp16 autocast + scaler, {title}" in said
    assert "Attempting to unscale" not in said
    rung = (
        f"precision fp16, rehearsed on the CPU: fp16 autocast over an {base} base, fp32 trainables, scaler on"
    )
    assert rung in client.ok("logs", run.name)
    attempts = [path for path in sorted(run.glob("[0-9]*")) if (path / "log.txt").exists()]
    assert len(attempts) == 1, f"{attempts}\n{said}\n{client.ok('explain', run.name)}"
    folder = attempts[0]
    assert json.loads((folder / "attempt.json").read_text())["rehearsed"] is True
    explained = json.loads(client.ok("explain", "--json", run.name))
    assert explained["verdict"] == "as-wanted"
    losses, perplexity = measured(folder, "loss"), measured(folder, "perplexity")
    assert sorted(losses) == [*range(1, STEPS + 1)]
    assert all(map(math.isfinite, losses.values()))
    assert perplexity[STEPS] < 0.9 * perplexity[0]
    assert loads(run / "artifacts", method, client.project / "student")
    assert project.pushes() == [f"alice/launch-{run.name}-1/1"]
    assert "machineShape" not in project.service.calls("SaveKernel")[0]["body"]


def measured(folder, name):
    """The values of a metric by step, as the run has recorded them."""
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    found = [event for event in events if event["kind"] == "metric" and name in event["values"]]
    return {event["step"]: event["values"][name] for event in found}


def loads(artifacts, method, base):
    """Whether transformers, and peft for an adapter, can read what came home, and all its weights are finite."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    if method == "full":
        model = AutoModelForCausalLM.from_pretrained(artifacts / "model")
    else:
        model = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base), artifacts / "adapter", is_trainable=True
        )
    trained = [part for part in model.parameters() if part.requires_grad]
    return bool(trained) and all(bool(part.isfinite().all()) for part in trained)


def test_bf16_is_refused_for_kaggles_cards(project):
    """Before anything is pushed: torch says that a T4 has it, and the card emulates it."""
    done = project.client.run(*WORDS, "--precision", "bf16")
    assert done.returncode == 3
    assert "bf16 is excluded on 2 x T4 16 GB" in done.stderr
    assert project.pushes() == []


def test_the_card_that_was_reported_is_not_given_any_more(project):
    """The P100 of the report is retired; what comes instead is named."""
    words = ["p100" if word == "t4x2" else word for word in WORDS if word != "--rehearse"]
    done = project.client.run(*words)
    assert done.returncode == 3
    assert "retired the P100" in done.stderr
    assert "--profile t4x2" in done.stderr
    assert project.pushes() == []
