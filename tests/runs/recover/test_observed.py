"""A script that does not use the worker, with a real Trainer: what the start-up hook reports of it."""

import json

import pytest
from testbed.llama import save_small_llama

pytestmark = pytest.mark.training

SCRIPT = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

ledger = open(sys.argv[1], "a", buffering=1)

class Ledger(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print(json.dumps([state.global_step, logs]), file=ledger)

rows = [{"input_ids": torch.arange(8) + row, "labels": torch.arange(8) + row} for row in range(12)]
arguments = TrainingArguments(
    "out", num_train_epochs=3, logging_steps=2, eval_strategy="steps", eval_steps=3, report_to=[], use_cpu=True,
    per_device_train_batch_size=2, gradient_accumulation_steps=2, save_strategy="no", disable_tqdm=False,
)
model = AutoModelForCausalLM.from_pretrained("tiny")
trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=[Ledger()])
trainer.evaluate()
trainer.train()
print(len(trainer.callback_handler.callbacks), "callbacks")
"""


def host_events(client, run, kind):
    """Events of a kind, from the host's own files."""
    folder = client.home / ".launch" / "runs" / run / "record"
    lines = [
        line for path in sorted(folder.glob("[0-9]*/events.jsonl")) for line in path.read_text().splitlines()
    ]
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def launched(client, *words):
    """Launch the script with a ledger of its own; give what was printed, the run, and the ledger's lines."""
    save_small_llama(client.project / "tiny")
    client.script(SCRIPT)
    ledger = client.home / "ledger"
    said = client.seen(*words, "--", "python", "train.py", str(ledger), timeout=300)
    (run,) = [path.name for path in client.runs.iterdir() if path.is_dir()]
    return said, run, [json.loads(line) for line in ledger.read_text().splitlines()]


def test_metrics_of_a_trainer_are_those_that_it_computed_at_their_own_steps(client):
    """Losses, evaluations and epochs equal a ledger of the script's own; the end is still judged by the exit code."""
    said, run, ledger = launched(client)
    metrics = host_events(client, run, "metric")
    assert [[event["step"], event["values"]] for event in metrics] == ledger
    assert [step for step, logs in ledger if "eval_loss" in logs] == [0, 3, 6, 9]
    assert {event["source"] for event in metrics} == {"hook"}
    assert client.summary(run)["state"] == "succeeded"
    assert (client.summary(run)["reason"], client.summary(run)["step"]) == ("exit-only", 9)
    assert "start-up hook: reads steps and metrics of a Hugging Face Trainer" in said
    assert "steps and metrics come from the Trainer of transformers" in said
    assert "9 steps" in said
    assert "by the start-up hook" in client.seen("attach", run)


@pytest.mark.long
def test_inject_false_leaves_the_script_alone(client):
    """Its metrics then come from the log, and nothing is said of a hook."""
    said, run, ledger = launched(client, "--set", "inject=false")
    assert "hook" not in said
    assert not [event for event in host_events(client, run, "metric") if event["source"] != "log"]
    assert "3 callbacks" in client.ok("logs", run)
    assert ledger
