"""What a launch says of known bugs in its script, before it is sent and after it has failed."""

import pytest

SCRIPT = """raise ValueError("Attempting to unscale FP16 gradients.")
import argparse
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--fp16", action="store_true")
options = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("name", dtype=torch.float16)
arguments = TrainingArguments("out", fp16=options.fp16, logging_nan_inf_filter=False, optim="sgd")
Trainer(model=model, args=arguments, train_dataset=[]).train()
"""
SAID = "train.py:9 LC101: fp16=True scales the loss"


def words(*more, command=("python", "train.py", "--fp16")):
    return (*more, "--profile", "t4", "--rehearse", "--", *command)


def said(done):
    """The errors of a command, without line ends."""
    return " ".join(done.stderr.split())


def test_a_launch_shows_the_bugs_of_its_script_and_its_end_names_the_mend(client):
    """The option that counts is that of the command."""
    client.script(SCRIPT)
    done = client.run(*words())
    assert done.returncode == 1
    assert SAID in said(done)
    assert "check launch check --fix train.py LC101" in said(done)
    assert client.run("check", "--fix", "train.py").returncode == 0  # by its default, fp16 is off


def test_without_the_option_there_is_no_bug(client):
    """Its default is off."""
    client.script(SCRIPT)
    assert "LC101" not in said(client.run("--dry-run", *words(command=("python", "train.py"))))


@pytest.mark.parametrize(("check", "code"), [("strict", 3), ("warn", 0), ("off", 0)])
def test_the_job_says_what_a_bug_does(client, check, code):
    """Strict refuses it before anything is sent."""
    client.script(SCRIPT)
    done = client.run("--dry-run", "--set", f"check={check}", *words())
    assert done.returncode == code
    assert (SAID in " ".join((done.stdout + done.stderr).split())) == (check != "off")
    if code:
        assert client.run("--set", "check=strict", *words()).returncode == 3
        assert not [*client.runs.glob("[0-9]*")]


def test_an_adapted_run_takes_its_precision_from_the_plan(client):
    """So the script's own is no bug."""
    client.script(SCRIPT)
    done = client.run("--dry-run", "--adapt", *words())
    assert "LC101" not in done.stdout + done.stderr
