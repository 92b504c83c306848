"""Runs a training script and writes down, inside its process, what its optimizer and its card do: `witness.py SCRIPT …`.

Each line of JSON in the file $WITNESS is the first line of the script or a step: `time` is the wall clock, `clock` a clock
that nobody sets, `peak_bytes` the most memory that tensors had on the card so far (None on a CPU). `optimizer` is None at a step
at which a scaler found gradients that are not finite, and spared the optimizer. The card is waited for at each step, so that a step's
time is the card's.

After $WITNESS_WAITS steps the script is held until the file $WITNESS.go is there: something can be done to it at this very step.
"""

import json
import os
import runpy
import sys
import time

PATH = os.environ["WITNESS"]
HELD_AFTER = int(os.environ.get("WITNESS_WAITS", "0"))


def note(kind: str, **more: object) -> None:
    """Write a line."""
    line = {"kind": kind, "pid": os.getpid(), "time": time.time(), "clock": time.monotonic(), **more}
    with open(PATH, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


note("start")  # before torch is loaded, which takes seconds

import torch  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402


class Steps:
    """Notes each step, and holds the script after one of them."""

    count = 0
    has_stepped = False

    def after_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note a step of the optimizer."""
        self.has_stepped = True
        is_fused = optimizer.param_groups[0].get("fused")
        self._note(f"{type(optimizer).__name__}{', fused' if is_fused else ''}")

    def after_scaler(self) -> None:
        """Note a step at which the scaler has spared the optimizer."""
        if not self.has_stepped:
            self._note(None)
        self.has_stepped = False

    def _note(self, optimizer: str | None) -> None:
        is_on_card = torch.cuda.is_available() and torch.cuda.is_initialized()
        if is_on_card:
            torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() if is_on_card else None
        note("step", peak_bytes=peak, optimizer=optimizer)
        self.count += 1
        while self.count == HELD_AFTER and not os.path.exists(f"{PATH}.go"):
            time.sleep(0.05)


steps = Steps()
update = torch.amp.GradScaler.update


def update_and_note(self: torch.amp.GradScaler, *args: object, **kwargs: object) -> None:
    """Update the scale, which ends a step."""
    update(self, *args, **kwargs)
    steps.after_scaler()


torch.amp.GradScaler.update = update_and_note
register_optimizer_step_post_hook(steps.after_optimizer)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
