"""`launch resume` of a script that knows nothing of launcher: from its own checkpoint. Witness: a ledger outside the runs."""

import hashlib
import json

import pytest

pytestmark = pytest.mark.slow(reason="a training with transformers takes seconds to start")

TRAINER = """
import json, os, sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
torch.manual_seed(0)
sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
rows = [{"input_ids": torch.arange(i, i + 8) % 64, "labels": torch.arange(i, i + 8) % 64} for i in range(40)]
ledger = os.environ["LEDGER"]
class Ledger(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        print(state.global_step, file=open(ledger, "a"))
        if state.global_step == 12 and not os.path.exists(ledger + ".killed"):
            open(ledger + ".killed", "w").close()
            os.kill(os.getpid(), 9)
arguments = TrainingArguments("out", max_steps=14, save_steps=5, logging_steps=1, report_to="none", use_cpu=True, learning_rate=0.01)
trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[Ledger()])
trainer.train()
json.dump([trainer.state.global_step, *(float(p.sum()) for p in model.parameters())], open(ledger + ".end", "w"))
"""
OWN = """
import argparse, os, torch
words = argparse.ArgumentParser()
words.add_argument("--resume")
words.add_argument("--steps", type=int, default=6)
words = words.parse_args()
step, weight = torch.load(words.resume) if words.resume else (0, torch.zeros(1))
ledger = open(os.environ["LEDGER"], "a", buffering=1)
while step < words.steps:
    step, weight = step + 1, weight + 1
    print("step", step, "loss", 1 / step, flush=True)
    print(step, file=ledger)
    torch.save((step, weight), "ckpt.pt")
os.kill(os.getpid(), 9) if words.steps == 6 else None
"""

BY_EPOCHS = """
import os
state = os.path.expanduser("~/state")
done = int(open(state).read()) if os.path.exists(state) else 0
for step in range(done, 50):
    print("Epoch: [%d][%2d/10]  Loss %.4f" % (step // 10, step % 10, 3.9 / (1 + step)), flush=True)
    if step % 10 == 9:
        open(state, "w").write(str(step + 1))
    if step == 24 and not done:
        os.kill(os.getpid(), 9)
"""
"""As PyTorch's examples print: a second start, in the middle, has no steps to count from."""


def steps(path):
    return [int(line) for line in path.read_text().split()]


def digests(client):
    """The SHA-256 of each file below a checkpoint, of all runs."""
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (client.home / ".launch" / "runs").rglob("checkpoint-*/*")
        if path.is_file()
    }


def test_a_trainer_goes_on_from_its_own_checkpoint_to_the_same_weights(client):
    """Without the worker and without --adapt: the hook passes the checkpoint, and no step is trained twice but those after it."""
    client.script(TRAINER)
    ledger, whole = client.home / "ledger", client.home / "whole"
    (client.home / "whole.killed").touch()
    assert client.run("-e", f"LEDGER={whole}", "--", "python", "train.py").returncode == 0
    done = client.run("-e", f"LEDGER={ledger}", "--", "python", "train.py")
    assert done.returncode == 1, done.stderr
    offered = [line.split() for line in done.stderr.splitlines() if line.startswith("  resume")]
    assert [words[1:3] for words in offered] == [["launch", "resume"]]
    assert "from its own out/checkpoint-10" in done.stderr
    before = digests(client)
    again = client.run(*offered[0][2:4])
    assert again.returncode == 0, again.stderr
    assert steps(ledger) == [*range(1, 13), *range(11, 15)]
    assert before.items() <= digests(client).items()  # the files of earlier runs stay as they were
    assert json.loads((client.home / "ledger.end").read_text()) == json.loads(
        (client.home / "whole.end").read_text()
    )


@pytest.mark.long
def test_a_job_that_may_start_again_lets_its_trainer_go_on(client):
    """In the same run: `restart` is for a script that resumes from its own file, and the hook makes a Trainer one."""
    client.script(TRAINER)
    ledger = client.home / "ledger"
    done = client.run("--set", "restart=true", "-e", f"LEDGER={ledger}", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert steps(ledger) == [*range(1, 13), *range(11, 15)]
    assert "resuming from step 10" in done.stderr


@pytest.mark.long
def test_a_trainer_that_begins_anew_in_a_resumed_run_is_in_doubt(client):
    """Here each start saves into another folder, so that no Trainer is given the checkpoint."""
    client.script(TRAINER.replace('"out"', '"out-%d" % os.getpid()'))
    ledger = client.home / "ledger"
    assert client.run("-e", f"LEDGER={ledger}", "--", "python", "train.py").returncode == 1
    done = client.run("resume", "last")
    assert (done.returncode, "its training began anew" in done.stderr) == (1, True), done.stderr
    assert steps(ledger) == [*range(1, 13), *range(1, 15)]
    refused = client.run("resume", "last", "--set", "steps=20")
    assert (refused.returncode, "-- python train.py --steps …" in refused.stderr) == (2, True), refused.stderr


def test_a_script_with_an_option_of_its_own_gets_its_files_and_the_option(client):
    """Refused without the option, with the command to type; then it continues, and again from its success."""
    client.script(OWN)
    ledger = client.home / "ledger"
    first = client.run("-e", f"LEDGER={ledger}", "--", "python", "train.py")
    assert "-- COMMAND     with your script's option that loads ckpt.pt" in first.stderr
    refused = client.run("resume", "last")
    assert refused.returncode == 1
    assert "-- python train.py …" in refused.stderr
    command = ("--", "python", "train.py", "--resume", "ckpt.pt", "--steps")
    assert client.run("resume", "last", *command, "8").returncode == 0
    nothing = client.run("resume", "last")
    assert (nothing.returncode, "train further from ckpt.pt" in nothing.stderr) == (2, True)
    assert client.run("resume", "last", *command, "9").returncode == 0
    assert steps(ledger) == [*range(1, 10)]


def test_a_second_start_without_steps_has_its_own_end(client):
    """Neither the last step nor the loss of the start before is shown as the run's."""
    client.script(BY_EPOCHS)
    done = client.run("--set", "restart=true", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(client.ok("ps", "--json"))["runs"]
    assert (row["attempt"], row["step"], row["loss"]) == (2, None, 0.078)
    (end,) = [line for line in done.stderr.splitlines() if "succeeded" in line]
    assert end.endswith("loss 3.9 → 0.078")
    assert "steps" not in end
