"""A script's reports on its progress: metrics, stages, the start and the end of training."""

from __future__ import annotations

import os
from typing import Any, Optional

from .channel import send
from .guard import process_guard
from .guard.torch_hooks import allow_casts
from .json_values import scalar
from .pace import process_pace


def log(step: int, **values: Any) -> None:
    """Report metrics of a step: numbers (torch and numpy scalars too), bools and strings.

    Outside a run, print one readable line. Raises TypeError for a value of another type.
    """
    metrics = {name: scalar(name, value) for name, value in values.items()}
    process_guard.hear(step, metrics)
    if "eval_loss" in metrics:
        process_pace.note_eval_loss(step, metrics["eval_loss"])
    if "LAUNCH_ATTEMPT" in os.environ:
        send("metric", step=step, values=metrics)
    else:
        parts = [f"step {step}"]
        for name, value in metrics.items():
            parts.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
        print("  ".join(parts), flush=True)


def progress(stage: str, done: int, total: int) -> None:
    """Report progress of a long stage without training steps, such as generation; outside a run do nothing."""
    send("progress", values={"stage": stage, "done": done, "total": total})


def begin(step: int, steps: Optional[int]) -> None:
    """Report that training continues after `step` up to `steps`; `trainer_callback` does it for a Trainer."""
    process_guard.restart(step, steps)
    send("begin", values={"step": step, "steps": steps})


def done(step: int) -> None:
    """Report success at the final step. Call it last, when all results are on disk.

    Raises Tripped if the guard has tripped or the last steps were bad: that is not a success.
    """
    process_guard.finish()
    allow_casts()
    process_pace.leave()
    send("done", step=step)
