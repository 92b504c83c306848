"""Two ranks of torch.distributed: they save and stop at the same step, and go on from it together."""

import json
import re
from pathlib import Path

import pytest
from testbed.client import until

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
    (checkpoint,) = (folder / "checkpoints").iterdir()
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    assert (manifest["step"], manifest["world_size"]) == (step, 2)
    log = Path(folder, "0002", "log.txt").read_text()
    assert not re.search("Traceback|SIGKILL", log.partition("SignalException")[0].partition("Traceback")[0])
