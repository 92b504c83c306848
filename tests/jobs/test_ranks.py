"""Two ranks of torch.distributed: the same training as one, saved and stopped at the same step, gone on from together."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from testbed.client import is_gone, until, until_left

pytestmark = pytest.mark.training

LOOP = """
import json, os, sys, time
import launcher_worker as worker
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
plan = worker.knobs()
found = worker.resume_from()
weight = torch.load(os.path.join(found, "weight.pt")) if found else torch.zeros(1)
step = int(weight.item())
ledger = open(os.path.join(sys.argv[1], f"rank{rank}"), "a", buffering=1)
while step < plan.steps:
    step += 1
    gradient = torch.tensor([1.0 if rank == 0 else 3.0])
    dist.all_reduce(gradient)
    weight += gradient / 4
    print(step, file=ledger)
    time.sleep(0.02)
    worker.log(step, loss=1.0 / step)
    if worker.due(step):
        worker.save(step, lambda folder: torch.save(weight, os.path.join(folder, "weight.pt")))
        dist.barrier()
    if worker.stopping():
        print("stopped", file=ledger)
        sys.exit(0)
if rank == 0:
    worker.done(step)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_ranks_that_are_asked_to_end_do_so_at_the_same_step_and_go_on_together(client):
    """torchrun passes the word on to each at another moment; a rank that stopped alone would leave the other waiting."""
    client.script(LOOP)
    words = (
        "--set", "steps=400", "--set", "save_every_steps=1000", "--",
        "torchrun", "--nproc-per-node", "2", "train.py", str(client.home),
    )  # fmt: skip
    run = client.detached(*words)
    ledgers = [client.home / f"rank{rank}" for rank in (0, 1)]
    until(lambda: all(path.exists() and len(path.read_text().split()) > 20 for path in ledgers), "steps", 60)
    client.ok("stop", run)
    first, second = (path.read_text().split() for path in ledgers)
    assert first == second
    assert first[-1] == "stopped"
    step = int(first[-2])
    folder = client.home / ".launch" / "runs" / run
    (checkpoint,) = (folder / "work" / "checkpoints").iterdir()
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    assert (manifest["step"], manifest["world_size"]) == (step, 2)
    log = Path(folder, "record", "0002", "log.txt").read_text()
    assert not re.search("Traceback|SIGKILL", log.partition("SignalException")[0].partition("Traceback")[0])


SFT = (
    "--rehearse", "--precision", "fp32", "--job", "./job.toml", "--set", "steps=12", "--set", "save_every_steps=4",
    "--set", "batch.global=8", "--set", "settings.logging_steps=1",
)  # fmt: skip


def weights(client, run):
    """The adapter's weights, by name."""
    from safetensors.torch import load_file

    folder = client.home / ".launch" / "runs" / run
    return load_file(folder / "work" / "artifacts" / "adapter" / "adapter_model.safetensors")


def losses(client, run):
    """The loss of each step."""
    lines = [json.loads(line) for line in client.ok("metrics", run, "--json").splitlines()]
    return {line["step"]: line["value"] for line in lines if line["name"] == "loss"}


def ended(client, run):
    """Wait for the end of a run, which is to be a good one."""
    until_left(client.home / ".launch" / "runs" / run)
    assert client.summary(run)["state"] == "succeeded", client.ok("logs", run)
    return run


@pytest.mark.long
def test_two_ranks_train_as_one_does_and_outlive_the_death_of_one(sft_project):
    """`python sft.py` becomes two processes by the plan; each has half of the batch, and the examples are the same.

    An epoch has two and a half steps, and the death comes in the second one.
    """
    client = sft_project
    one = ended(client, client.detached("--profile", "t4", *SFT))
    run = client.detached("--profile", "t4x2", *SFT)
    folder = client.home / ".launch" / "runs" / run
    until(
        lambda: (folder / "work" / "checkpoints" / "checkpoint-4" / "manifest.json").exists(),
        "a checkpoint",
        120,
    )
    told = {pid: environment(pid) for pid, words in commands() if words.endswith("sft.py")}
    ranks = {pid: text for pid, text in told.items() if str(folder) in text and "\0RANK=" in text}
    assert sorted(text.split("\0RANK=")[1][0] for text in ranks.values()) == ["0", "1"]
    os.kill(min(ranks), signal.SIGKILL)
    until(lambda: all(is_gone(pid) for pid in ranks), "the other rank's end")
    ended(client, run)
    begins = [
        json.loads(line)["values"]["step"]
        for path in sorted(folder.glob("record/[0-9]*/events.jsonl"))
        for line in path.read_text().splitlines()
        if '"begin"' in line
    ]
    assert len(begins) == 2
    assert begins[1] >= 4
    manifest = json.loads((folder / "work" / "checkpoints" / "checkpoint-12" / "manifest.json").read_text())
    assert manifest["world_size"] == 2
    alone = weights(client, one)
    for name, weight in weights(client, run).items():
        assert (weight - alone[name]).abs().mean() < 1e-6, name
    plain = losses(client, one)
    for step, loss in losses(client, run).items():
        assert loss == pytest.approx(plain[step], rel=1e-5), step


def commands():
    """Pid and command line of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield (
                int(path.parent.name),
                path.read_bytes().decode("utf-8", "replace").replace("\0", " ").strip(),
            )
        except OSError:  # gone meanwhile
            continue


def environment(pid):
    """The environment of a process; empty for one that has gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
