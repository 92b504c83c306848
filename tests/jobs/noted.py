"""Runs a job as one or more ranks, and notes its events in the file `events`: `noted.py JOB RANKS`.

A file `kill` holds a step and a rank: that rank is killed as the step ends, before a checkpoint of it. As torchrun does,
the end of one rank ends the others.
"""

import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path


def become_ranks(count):
    """Fork this process into ranks, and wait for them; it returns in each rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ.update(
        WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo"
    )
    ranks = set()
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            return
        ranks.add(pid)
    end = 0
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        if status and not end:
            end = status
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    if os.WIFSIGNALED(end):
        os.kill(os.getpid(), os.WTERMSIG(end))
    sys.exit(os.WEXITSTATUS(end))


job, count = sys.argv[1], int(sys.argv[2])
if count > 1:
    become_ranks(count)
rank = int(os.environ.get("RANK", "0"))

from launcher_worker import events  # noqa: E402 - in each rank
from launcher_worker.pace import process_pace  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from transformers import Trainer  # noqa: E402

send, is_due, training_step = events.send, process_pace.is_due, Trainer.training_step


def note(kind, **values):
    with open(f"events{rank}", "a") as file:
        file.write(json.dumps([kind, values]) + "\n")


def noted(kind, **values):
    note(kind, **values)
    send(kind, **values)


def killed_once(step, steps):
    if Path("kill").exists() and Path("kill").read_text() == f"{step} {rank}":
        os.kill(os.getpid(), signal.SIGKILL)
    return is_due(step, steps)


def counted(self, model, inputs, *rest):
    """Note the tokens that are no padding, and how the weights are kept."""
    mask = inputs.get("attention_mask")
    tokens = inputs["input_ids"].numel() if mask is None else int(mask.sum())
    shards = sum(isinstance(one, DTensor) for one in self.model.parameters())
    note("micro-batch", tokens=tokens, shards=shards, weights=len(list(self.model.parameters())))
    return training_step(self, model, inputs, *rest)


events.send, process_pace.is_due, Trainer.training_step = noted, killed_once, counted
sys.argv = [job]
runpy.run_module(job, run_name="__main__", alter_sys=True)
