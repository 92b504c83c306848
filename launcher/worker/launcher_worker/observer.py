"""Observe the Trainers of a script that does not use the worker: report their steps and metrics.

    startup/sitecustomize.py    calls `observe_trainer` once transformers.trainer is imported
    Observer                    a callback in every Trainer; reports Trainer's state, and changes nothing

Events of the hook have the field `"source": "hook"`. A script that only the hook observes does not use the
worker: its exit code and its log decide how it ended. The hook sends no event before its first report, and
none at all if the script reports its metrics itself.

An error of the hook never reaches the script. The first one is recorded as evidence.
"""

from __future__ import annotations

import atexit
import sys
from typing import Any

from .channel import beat, process_channel, send
from .shield import SOURCE, shielded
from .trainer_lines import TrainerLines


@shielded
def observe_trainer(module: Any) -> None:
    """Add an observer to every Trainer of this process; `module` is transformers.trainer."""
    callbacks = module.DEFAULT_CALLBACKS  # the default callbacks of every Trainer made from now on
    if Observer not in callbacks:
        callbacks.append(Observer)
        atexit.register(process_channel.close)  # an open socket is a warning under `python -X dev`


class Observer:
    """Reports the start, the steps, the log lines and the end of a Trainer's training.

    It has the methods of a `transformers.TrainerCallback`; the ones that it does not define do nothing. It is
    not a subclass, so that this module needs no transformers and a Trainer can still be pickled.
    """

    def __init__(self) -> None:
        self._lines = TrainerLines()

    def __getattr__(self, name: str) -> Any:
        """Return a method that does nothing for an event that is not reported."""
        if name.startswith("on_"):
            return _ignore
        raise AttributeError(name)

    @shielded
    def on_train_begin(self, args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """Report where training begins and ends, and whether its log lines will follow."""
        self._lines.begin(args, state)
        if _reports(state):
            version = getattr(sys.modules.get("transformers"), "__version__", "")
            values = {
                "step": state.global_step,
                "steps": state.max_steps,
                "observed": f"Trainer of transformers {version}".rstrip(),
                "logs": getattr(args.logging_strategy, "value", args.logging_strategy) != "no",
            }
            send("begin", values=values, source=SOURCE)

    @shielded
    def on_substep_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """Note the loss of a micro-batch."""
        if _reports(state):
            self._lines.note_micro_batch()

    @shielded
    def on_step_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """Report the step, at most once a second."""
        if _reports(state):
            self._lines.note_micro_batch()
            beat(state.global_step, SOURCE)

    @shielded
    def on_prediction_step(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """Show that an evaluation makes progress."""
        if _reports(state):
            beat(state.global_step, SOURCE)

    @shielded
    def on_log(self, _args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
        """Report the line of a training step, of an evaluation, or the summary at the end."""
        if _reports(state):
            send("metric", state.global_step, self._lines.metrics(state, kwargs["logs"]), SOURCE)

    @shielded
    def on_train_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """Report the end: the code that follows has no steps and may be silent."""
        if _reports(state):
            send("end", source=SOURCE)


def _reports(state: Any) -> bool:
    """Return whether to report: only in the main process, and only if the script does not report metrics itself."""
    return bool(state.is_world_process_zero) and not process_channel.has_own_metrics


def _ignore(*_args: Any, **_kwargs: Any) -> None:
    pass
