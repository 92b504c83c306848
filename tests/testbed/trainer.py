"""A trainer of the standard library through the worker's own calls, and a judge who reads what it wrote elsewhere.

Its model is a digest over the samples in the order in which they were trained on: whoever skips one, or takes one twice,
ends with another. Each step is written, before it is done, into a ledger outside the run.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

GLOBAL_BATCH = 4

SOURCE = '''
import hashlib, json, os, sys, time
import launcher_worker as worker

ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
step_s = float(sys.argv[2])
plan = worker.knobs()
found = worker.resume_from()
step, model = 0, ""
if found:
    told = json.load(open(os.path.join(found, "trainer.json")))
    step, model = told["step"], open(os.path.join(found, "model.bin")).read()[:64]

def note(**said):
    os.write(ledger, (json.dumps({**said, "pid": os.getpid(), "attempt": plan.attempt}) + "\\n").encode())

def write(folder):
    for name, text in (("model.bin", model + "." * 200000), ("trainer.json", json.dumps({"step": step}))):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)

def train(size):
    """What a test may do beside a step."""

note(begin=step)
worker.begin(step, plan.steps)
size = plan.split.global_batch
#HOOK
while step < plan.steps:
    samples = list(range(step * size, step * size + size))
    note(step=step + 1, samples=samples)
    train(step + 1)
    for sample in samples:
        model = hashlib.sha256((model + str(sample)).encode()).hexdigest()
    step += 1
    time.sleep(step_s)
    worker.log(step, loss=1.0 / step)
    if worker.due(step):
        worker.save(step, write)
    if worker.stopping():
        note(stopped=step)
        sys.exit(0)
os.makedirs(plan.artifacts, exist_ok=True)
with open(os.path.join(plan.artifacts, "model"), "w") as file:
    file.write(model)
worker.done(step)
'''


def source(hook: str = "") -> str:
    """The script; `hook` may define `train(step)` anew, which is called in each step."""
    return SOURCE.replace("#HOOK", hook)


def expected(steps: int) -> str:
    """What the model is after so many steps, each sample once and in order."""
    model = ""
    for sample in range(steps * GLOBAL_BATCH):
        model = hashlib.sha256((model + str(sample)).encode()).hexdigest()
    return model


def read(ledger: Path) -> list[dict[str, Any]]:
    """The ledger's lines; one that a SIGKILL cut is none."""
    lines = ledger.read_text().split("\n") if ledger.exists() else []
    return [json.loads(line) for line in lines[:-1]]


def attempts(ledger: Path) -> list[list[int]]:
    """The steps of each start of the trainer, the first of them the one that it began behind."""
    found: list[list[int]] = []
    for line in read(ledger):
        if "begin" in line:
            found.append([line["begin"]])
        elif "step" in line:
            found[-1].append(line["step"])
    return found


def judge(ledger: Path, model: Path, steps: int, interval: int) -> int:
    """Raise AssertionError unless every sample was trained on, in order, and none more than an interval again.

    Return how many steps were done once more.
    """
    assert model.read_text() == expected(steps)
    again, last = 0, 0
    for done in attempts(ledger):
        assert done == list(range(done[0], done[0] + len(done))), done
        assert done[0] <= last, f"began behind step {done[0]} after step {last}: some were skipped"
        lost = last - done[0]
        assert lost <= interval, f"{lost} steps were lost, more than the interval of {interval}"
        again += lost
        last = max(last, done[-1])
    assert last == steps
    return again
