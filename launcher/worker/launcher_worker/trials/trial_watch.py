"""Follow the steps of a job in a trial, report its measurements, and end the job.

The guard calls this module. The first steps leave the weights unchanged, so the gradient of a step depends
only on the step's examples. It is compared with the gradient of the same step in fp32; this is valid even if
a scaler has skipped earlier steps.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional

from ..channel import rank, send
from ..guard.evidence import proof
from ..guard.judge import Judge
from ..values import knobs
from . import gradients
from .meters import StepMeter, peak_memory

WARM_STEPS = 1
"""Steps after the held ones that are not timed: torch chooses and compiles kernels in them."""
LEAVE_S = 5.0
"""The seconds that a job has to exit: a job may wait for a thread that never ends, or catch the exit."""


class TrialWatch:
    """One trial of a job. `judge` returns the guard's judge, which knows the losses and the skipped steps."""

    def __init__(self, model: Any, judge: Callable[[], Judge]) -> None:
        """Follow a model, beginning with its next step."""
        trial: Mapping[str, Any] = knobs().trial or {}
        self._model, self._judge = model, judge
        self._kind = str(trial["kind"])
        self._steps, self._held = int(trial["steps"]), int(trial["held"])
        self._folder, self._is_reference = str(trial["folder"]), bool(trial["is_reference"])
        self._done = 0
        self._step: Optional[int] = None
        self._cosines: List[float] = []
        self._rates: List[Any] = []
        self._dropouts = _dropouts(model) if self._held else []
        self._is_reported = self._is_leaving = False
        for module, _ in self._dropouts:
            module.p = 0.0
        self._meter = StepMeter(model)
        atexit.register(self._report)  # for a job that ends early

    def before_step(self, optimizer: Any) -> None:
        """In a held step, compare the gradient, and set the learning rates to 0.

        An optimizer without learning rates in its groups cannot be held: its steps begin with other weights
        in each trial.
        """
        rates = [group.get("lr") for group in optimizer.param_groups]
        if self._done >= self._held or any(rate is None for rate in rates):
            return
        self._compare(optimizer)
        self._rates = rates
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * 0

    def after_step(self, optimizer: Any) -> None:
        """Restore the learning rates."""
        for group, rate in zip(optimizer.param_groups, self._rates):  # noqa: B905 - they are the same groups
            group["lr"] = rate
        self._rates = []

    def end_step(self, step: int) -> bool:
        """Count a step; return whether it was the last one of the trial."""
        self._done, self._step = self._done + 1, step
        self._meter.count_step()
        if self._done == self._held:
            self._end_of_held()
        if self._done == self._held + WARM_STEPS:
            self._meter.begin()
        return self._done >= self._steps

    def end(self) -> None:
        """Send the report and end this process: the trial is complete.

        The first call uses `sys.exit`, so that the job closes its files. A call in another thread, or a
        second one, exits at once. The report is sent first, because a job's threads may block Python's own
        exit.
        """
        self._meter.end()
        self._report()
        if self._is_leaving or threading.current_thread() is not threading.main_thread():
            _leave()
        self._is_leaving = True
        late = threading.Timer(LEAVE_S, _leave)
        late.daemon = True
        late.start()
        sys.exit(0)

    def _end_of_held(self) -> None:
        for module, probability in self._dropouts:
            module.p = probability
        self._dropouts = []

    def _compare(self, optimizer: Any) -> None:
        if rank() != 0 or _is_left_out(optimizer):
            return
        elements, step = gradients.sample(optimizer), self._done + 1
        if elements is None:
            return
        if self._is_reference:
            gradients.write(self._folder, step, elements)
        cosine = gradients.cosine_to_reference(self._folder, step, elements)
        if cosine is not None:
            self._cosines.append(cosine)

    def _report(self) -> None:
        """Send the measurements, once."""
        judge = self._judge()
        if self._is_reported or rank() != 0 or not self._done:
            return
        self._is_reported = True
        shown = proof(self._model, judge)
        split = knobs().peek.split
        values: Dict[str, object] = {
            "kind": self._kind,
            "steps": self._done,
            "micro_batch": split.micro_batch,
            **{name: shown[name] for name in ("loss_first", "loss_last", "skipped", "dtypes", "key")},
            "scale": judge.last.scale,
            "moved": judge.has_moved,
            "cosine": min(self._cosines, default=None),
            "compared": len(self._cosines),
            **self._meter.figures(),
            **peak_memory(self._model),
        }
        if knobs().rehearsed:
            from ..rehearsal import imitation

            imitation.report()
        send("evidence", step=self._step, values={"trial": values})


def _leave() -> None:
    """End this process, regardless of its threads."""
    try:
        sys.stdout.flush()
    finally:
        os._exit(0)


def _is_left_out(optimizer: Any) -> bool:
    """Return whether a scaler has found an overflow: a fused optimizer is still called, but skips its step."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _dropouts(model: Any) -> List[Any]:
    """Return the dropout modules, each with its probability."""
    from torch.nn.modules.dropout import _DropoutNd

    return [(module, module.p) for module in model.modules() if isinstance(module, _DropoutNd) and module.p]
