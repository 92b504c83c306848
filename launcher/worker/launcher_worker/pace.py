"""When to save a checkpoint and when to stop, agreed between all ranks of a training.

SIGTERM is the agent's request to end the run. It takes effect after the current step: a checkpoint becomes
due, and `stopping()` returns True.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any, Optional, Tuple

from .channel import beat, rank, send
from .values import knobs

NO_REQUEST, SAVE, STOP = 0, 1, 2  # a rank's request; the largest request of all ranks wins


def due(step: int) -> bool:
    """Return whether to save a checkpoint now; call it once after each step.

    A checkpoint is due every `save_every_steps` or `save_every_minutes`, after the last step, and when the
    run is asked to end (SIGTERM); then `stopping()` is True as well. All ranks of torch.distributed get the
    same answer, so all must call.
    """
    return process_pace.is_due(step, knobs().peek.steps)


def stopping() -> bool:
    """Return whether the run is asked to end after this step, as of the last `due`."""
    return process_pace.is_stopping


class SaveSchedule:
    """Decides when to save and when to stop: the same answer at the same step on every rank."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._is_stop_requested = False
        self._is_listening = False
        self._saved_s = time.monotonic()
        self._agreed_before: Any = None  # a tensor: the largest request at the previous step
        # the step and the loss of the last evaluation
        self._evaluation: Tuple[Optional[int], Any] = (None, None)

    def listen(self) -> None:
        """Handle SIGTERM as a request to end after the step, unless the script handles it itself."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._is_listening or not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        self._is_listening = True
        signal.signal(signal.SIGTERM, self._request_stop)

    def leave(self) -> None:
        """Let SIGTERM end the process again, after the last save."""
        if self._is_listening and threading.current_thread() is threading.main_thread():
            self._is_listening = False
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def note_eval_loss(self, step: int, loss: Any) -> None:
        """Keep the step and the loss of the last evaluation."""
        self._evaluation = (step, loss)

    def eval_loss(self, step: int) -> Optional[float]:
        """Return the finite loss of an evaluation at exactly this step; None if there is none."""
        evaluated_step, loss = self._evaluation
        return float(loss) if evaluated_step == step and isinstance(loss, (int, float)) else None

    def is_due(self, step: int, steps: Optional[int]) -> bool:
        """Return whether a checkpoint is due after a step; `steps` is the last one."""
        self.listen()
        beat(step)
        values = knobs()
        every, minutes = values.save_every_steps, values.save_every_minutes
        is_late = minutes is not None and time.monotonic() - self._saved_s >= 60 * minutes
        request = STOP if self._is_stop_requested else SAVE if is_late and rank() == 0 else NO_REQUEST
        agreed = self._agree(request)
        if agreed == STOP and not self.is_stopping and rank() == 0:
            send("stopping", step=step)
        self.is_stopping = agreed == STOP
        is_last = step == steps and (every or minutes) is not None
        is_due = agreed > NO_REQUEST or is_last or (every is not None and step % every == 0)
        if is_due:
            self._saved_s = time.monotonic()
            # This checkpoint satisfies all requests so far; a rank that needs another one requests it again.
            self._agreed_before = None
        return is_due

    def _request_stop(self, *_: Any) -> None:
        self._is_stop_requested = True

    def _agree(self, request: int) -> int:
        """Return the largest request of all ranks.

        With several ranks the result is that of the previous step, so that no rank waits for its GPU.
        """
        torch = sys.modules.get("torch")
        distributed = torch and torch.distributed
        if not (distributed and distributed.is_available() and distributed.is_initialized()):
            return request
        if distributed.get_world_size() == 1:
            return request
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        largest = torch.full((), request, device=device)  # type: ignore[union-attr]
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
        agreed, self._agreed_before = self._agreed_before, largest
        return NO_REQUEST if agreed is None else int(agreed)


process_pace = SaveSchedule()
# SIGTERM must end a forked child, such as a data loader's or a pool's process, as its parent expects.
os.register_at_fork(after_in_child=process_pace.leave)
