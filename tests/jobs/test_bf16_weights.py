"""A full fine-tune with bf16 weights on two ranks, by `sft`: the ranks stay alike, and a killed run ends with the same bits."""

import json
import re
import shutil

import pytest
from jobs.conftest import SFT
from testbed.client import until_left
from testbed.job_programs import save_model

pytestmark = pytest.mark.training

WORDS = (
    "--rehearse", "--profile", "a100_40gb", "--gpus", "2", "--precision", "bf16-weights", "--job", "./job.toml",
    "--set", "method=full", "--set", "steps=8", "--set", "save_every_steps=4", "--set", "batch.global=4",
    "-e", "OMP_NUM_THREADS=1",
)  # fmt: skip
# Each rank writes what its weights are when a step begins; one dies once, in a run that is to be torn.
LEDGER = """
import hashlib, os, runpy, signal, sys, time
import torch
from transformers import Trainer

plain = Trainer.training_step

def training_step(self, model, inputs, *rest):
    bits = b"".join(part.detach().view(torch.int16).numpy().tobytes() for part in model.parameters())
    with open(os.path.join(sys.argv[1], "rank" + os.environ["RANK"]), "a") as ledger:
        print(self.state.global_step, hashlib.sha256(bits).hexdigest(), file=ledger)
    dead, sealed = sys.argv[1] + ".dead", os.path.join(self.args.output_dir, "checkpoint-4", "manifest.json")
    if sys.argv[1].endswith("torn") and self.state.global_step == 6 and os.environ["RANK"] == "1" and not os.path.exists(dead):
        while not os.path.exists(sealed):
            time.sleep(0.05)
        open(dead, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, model, inputs, *rest)

Trainer.training_step = training_step
runpy.run_path("sft.py", run_name="__main__")
"""


def started(client, ledger):
    """Start a run that writes into this folder; return its own folder."""
    ledger.mkdir()
    command = f'command = ["python", "ledger.py", "{ledger}"]'
    job = re.sub("command = .*", command, SFT).replace("settings = {", 'settings = { optim = "auto", ')
    (client.project / "job.toml").write_text(job)
    return client.home / ".launch" / "runs" / client.detached(*WORDS)


def weights_of(client, folder, ledger):
    """Wait for the end; return the digests of the weights at each step by rank, and those of the file."""
    until_left(folder)
    assert client.summary(folder.name)["state"] == "succeeded", client.summary(folder.name)
    ranks = [
        dict(line.split() for line in (ledger / f"rank{rank}").read_text().splitlines()) for rank in (0, 1)
    ]
    return ranks, (folder / "work" / "artifacts" / "model" / "model.safetensors").read_bytes()


def events(folder):
    """The events of all attempts, in order."""
    paths = sorted(folder.glob("record/[0-9]*/events.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.mark.long
def test_ranks_stay_alike_and_a_killed_run_ends_with_the_bits_of_one_that_was_not(sft_project):
    """Rounding draws random numbers: the same on both ranks, and the same again after a death."""
    client = sft_project
    (client.project / "ledger.py").write_text(LEDGER)
    shutil.rmtree(client.project / "base")
    save_model(client.project / "base", seed=0, hidden_size=128)  # its matrices have moments of 8 bits
    folder = started(client, client.home / "whole")
    whole = weights_of(client, folder, client.home / "whole")
    assert whole[0][0] == whole[0][1]
    assert len(set(whole[0][0].values())) == 7  # the first step has a learning rate of zero
    folder = started(client, client.home / "torn")
    assert weights_of(client, folder, client.home / "torn") == whole
    assert [one["values"]["step"] for one in events(folder) if one["kind"] == "begin"] == [0, 4]
