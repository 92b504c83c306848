"""Metrics from a Trainer's log lines, with the computed loss, which may differ from the printed one."""

from __future__ import annotations

import math
import sys
from typing import Any, Callable, Dict, Mapping, Optional, Union

from .json_values import scalar
from .throughput import Speedometer

_LOSS = "tr_loss_step"  # the variable of a micro-batch's loss in Trainer's loop, since transformers 4
_MAX_FRAMES = 10  # the most frames between a callback and that loop


class TrainerLines:
    """The log lines of one Trainer.

    Trainer leaves out losses that are not finite (`logging_nan_inf_filter`), so the line of a failed training
    has a loss of 0, or the mean of the other losses. In that case this class also sums up the losses, on
    their device.
    """

    def __init__(self, tokens: Optional[Callable[[int], int]] = None) -> None:
        """`tokens` returns the token count of a step; without it Trainer's count is used."""
        self._tokens_of = tokens
        self._filters = False
        self._sum: Any = None  # the sum of the losses since the last line of a training step
        self._tokens = 0
        self._speed = Speedometer()

    def begin(self, args: Any, state: Any, model: Any = None) -> None:
        """Start a training."""
        self._filters = bool(getattr(args, "logging_nan_inf_filter", False))
        self._sum = None
        self._tokens, self._speed = _tokens(state), Speedometer(model)

    def note_micro_batch(self) -> None:
        """Note the loss of the micro-batch that has just ended, if Trainer filters losses."""
        loss = loss_in_callers() if self._filters else None
        if loss is not None:
            self._sum = loss if self._sum is None else self._sum + loss

    def note_step(self, step: int) -> None:
        """Note that a step has ended."""
        if self._tokens_of is not None:
            self._speed.add(self._tokens_of(step))

    def metrics(self, state: Any, logs: Mapping[str, Any]) -> Dict[str, Union[int, float, str]]:
        """Return the metrics of a line.

        If tokens are counted, the line of a training step also has the tokens per second since the previous
        line, and the card's utilisation.
        """
        values = {name: value for name, value in logs.items() if isinstance(value, (int, float, str))}
        values.pop("num_input_tokens_seen", None)
        if "loss" in values:
            # Trainer adds averages since the start to every line; only the summary keeps them.
            values = {name: value for name, value in values.items() if not name.startswith("train_")}
            values["loss"] = self._true_loss(values)
            if self._tokens_of is None:
                self._speed.add(_tokens(state) - self._tokens)
                self._tokens = _tokens(state)
            values.update(self._speed.read())
        return {name: scalar(name, value) for name, value in values.items()}

    def _true_loss(self, values: Mapping[str, Any]) -> Any:
        """Return the loss of a line, or the non-finite loss that Trainer left out."""
        total, self._sum = self._sum, None
        if self._filters and total is not None and not math.isfinite(float(total)):
            return float(total)
        norm = values.get("grad_norm")
        is_lost = values["loss"] == 0 and isinstance(norm, float) and not math.isfinite(norm)
        return math.nan if self._filters and is_lost else values["loss"]


def _tokens(state: Any) -> int:
    """Return Trainer's token count; transformers before 4.34 counts none."""
    return int(getattr(state, "num_input_tokens_seen", 0))


def loss_in_callers() -> Any:
    """Return a micro-batch's loss from the frame of Trainer's loop; None if no calling frame is of that loop.

    A Trainer does not pass this loss to callbacks.
    """
    frame = sys._getframe(2)  # noqa: SLF001 - the only way to a caller's frame
    for _ in range(_MAX_FRAMES):
        if frame is None or _LOSS in frame.f_code.co_varnames:
            break
        frame = frame.f_back  # type: ignore[assignment]  # None ends the search
    else:
        return None
    if frame is None:
        return None
    variables = frame.f_locals
    loss = variables.get(_LOSS)
    # before Python 3.13 this is a copy, which would keep the batch alive for a step
    if type(variables) is dict:
        variables.clear()
    return loss
