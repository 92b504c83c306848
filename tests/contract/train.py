"""The training of the contract: it counts steps, saves, resumes and stops as its settings say. No torch.

It writes each step into a ledger outside the run's folder, so that a test sees what was trained however often.
"""

import os
import signal
import sys
import time
from pathlib import Path

import launcher_worker as worker

knobs = worker.knobs()
settings = knobs.settings
split, resumed = knobs.split, worker.resume_from()
begin = int(Path(resumed, "step").read_text()) if resumed else 0
ledger_path = os.path.join(knobs.cache, settings["ledger"])
ledger = open(ledger_path, "a", buffering=1)  # noqa: SIM115 - until the end
stopping = []


class OutOfMemoryError(RuntimeError):
    """CUDA's error as torch raises it."""


OutOfMemoryError.__module__ = "torch"


def write(folder):
    """Write a checkpoint."""
    Path(folder, "step").write_text(f"{step}\n")


def may_go_on():
    """Whether the test has let the training go on, or it is asked to stop."""
    return stopping or os.path.exists(ledger_path + ".go")


if settings["ignores_sigterm"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
print("begin at", begin, "micro-batch", split.micro_batch, flush=True)
for step in range(begin + 1, knobs.steps + 1):
    print(step, file=ledger)
    worker.log(step, loss=1.0 / step)
    while step == settings["waits_at"] and not may_go_on():
        time.sleep(0.02)
    if step % knobs.save_every_steps == 0 or stopping:
        worker.save(step, write)
    if stopping:
        sys.exit(0)
    if step == settings["crashes_at"] and not resumed:
        raise OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.65 GiB"
        )
os.makedirs(os.path.join(knobs.artifacts, "adapter"))
Path(knobs.artifacts, "adapter", "weights").write_bytes(b"trained" * 10000)
Path(knobs.artifacts, "a name with spaces.txt").write_text("done\n")
worker.done(knobs.steps)
