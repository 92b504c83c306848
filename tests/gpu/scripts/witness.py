"""Runs a training script and writes down, inside its process, what its optimizer and its card do: `witness.py SCRIPT …`.

Each line of JSON in the file $WITNESS is the start or a step of an optimizer: `time` is the wall clock, `clock` a clock that
nobody sets, `peak_bytes` the most memory that tensors had on the card so far (None on a CPU). The card is waited for at each
step, so that a step's time is the card's.

After $WITNESS_WAITS steps the script is held until the file $WITNESS.go is there: something can be done to it at this very step.
"""

import json
import os
import runpy
import sys
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

PATH = os.environ["WITNESS"]
HELD_AFTER = int(os.environ.get("WITNESS_WAITS", "0"))


def note(kind: str) -> None:
    """Write a line."""
    is_on_card = torch.cuda.is_available() and torch.cuda.is_initialized()
    if is_on_card:
        torch.cuda.synchronize()
    line = {
        "kind": kind,
        "pid": os.getpid(),
        "time": time.time(),
        "clock": time.monotonic(),
        "peak_bytes": torch.cuda.max_memory_allocated() if is_on_card else None,
    }
    with open(PATH, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


class Steps:
    """Notes each step, and holds the script after one of them."""

    count = 0

    def __call__(self, *_: object) -> None:
        """Note a step that is done."""
        note("step")
        self.count += 1
        while self.count == HELD_AFTER and not os.path.exists(f"{PATH}.go"):
            time.sleep(0.05)


note("start")
register_optimizer_step_post_hook(Steps())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
