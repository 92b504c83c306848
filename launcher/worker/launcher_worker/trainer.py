"""The callback for a `transformers.Trainer`: reports, saves, seals, stops, and lets the guard judge each step."""

from __future__ import annotations

import os
from typing import Any, Callable, Optional

from .channel import beat, process_channel, send
from .events import begin, log
from .guard import process_guard
from .pace import process_pace, stopping
from .precision.planned_optimizer import restore_form
from .precision.preparation import check_trainables
from .saving.checkpoints import make_way, save
from .trainer_lines import TrainerLines, loss_in_callers
from .values import knobs


def trainer_callback(
    keep: Optional[Callable[[int, str, Any, bool], None]] = None,
    tokens: Optional[Callable[[int], int]] = None,
) -> Any:
    """Return a `transformers.TrainerCallback` that reports the start and every log line, and saves.

    The callback saves when `due` returns True, and ends the training after a step when the run is asked to
    end: see `stopping`. The guard judges each of Trainer's steps, even if the model was not prepared.

    If tokens are counted, the log line of a training step also has the tokens per second since the previous
    line. Trainer can count them, but then the host waits for the device after each micro-batch. Or `tokens`
    counts them: a function of the step that returns the token count of all its examples.

    A script that keeps its checkpoints outside launcher's folder passes `keep`. `keep` is called for each
    checkpoint with the step, the folder, the epoch, and whether the script itself requested the checkpoint.
    """
    from accelerate import PartialState
    from transformers import TrainerCallback

    process_channel.has_own_metrics = True

    class Reporter(TrainerCallback):  # type: ignore[misc]  # the type checker does not read transformers
        """Connects a Trainer to the run."""

        def __init__(self) -> None:
            self._lines = TrainerLines(tokens)
            self._is_own_save = True

        def on_train_begin(self, args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
            """Report where training begins and ends, and let the guard follow this Trainer's steps."""
            values = knobs()
            if keep is None:
                values.consume("checkpoints")
            process_pace.listen()
            planned = values.peek.precision.autocast_dtype
            if (args.fp16, args.bf16) != (planned == "float16", planned == "bfloat16"):
                values.hold("precision")
            else:
                values.announce()
                check_trainables(kwargs.get("model"))
            if kwargs.get("optimizer") is not None:
                restore_form(kwargs["optimizer"])
            self._lines.begin(args, state, kwargs.get("model"))
            process_guard.follow_trainer(kwargs.get("model"), state.global_step, state.max_steps)
            if hasattr(args, "num_generations"):  # a trainer of TRL that learns from rewards
                process_guard.expect_rewards()
            if state.is_world_process_zero:
                begin(state.global_step, state.max_steps)

        def on_epoch_begin(self, _args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
            """Set the sampler's epoch."""
            _set_epoch(kwargs.get("train_dataloader"), int(state.epoch or 0))

        def on_substep_end(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
            """Note the loss of a micro-batch."""
            self._lines.note_micro_batch()
            process_guard.note_trainer_loss(loss_in_callers())

        def on_step_end(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
            """Let the guard judge the step; save or stop if due."""
            self._lines.note_micro_batch()
            process_guard.note_trainer_loss(loss_in_callers())
            self._lines.note_step(state.global_step)
            process_guard.tick(state.global_step)
            if process_pace.is_due(state.global_step, state.max_steps):
                self._is_own_save = control.should_save
                control.should_save = True
            if stopping():
                control.should_training_stop = True
            self._make_way(state, control)

        def on_epoch_end(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
            """Remove old checkpoints before Trainer saves one at the end of an epoch, if the job keeps 0 of them."""
            self._make_way(state, control)

        def _make_way(self, state: Any, control: Any) -> None:
            if control.should_save and keep is None and knobs().keep_checkpoints == 0:
                make_way(state.global_step)
                PartialState().wait_for_everyone()

        def on_train_end(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
            """Let the guard judge the remaining steps, and follow this Trainer no longer."""
            process_guard.leave_trainer()
            process_pace.leave()
            send("end")

        def on_prediction_step(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
            """Show that an evaluation makes progress."""
            beat(state.global_step)

        def on_log(self, _args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
            """Report the line of a training step, of an evaluation, or the summary at the end."""
            if not state.is_world_process_zero:
                return
            log(state.global_step, **self._lines.metrics(state, kwargs["logs"]))

        def on_save(self, args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
            """Seal the checkpoint, after every rank has written its part."""
            PartialState().wait_for_everyone()
            folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            if keep is None:
                save(state.global_step, folder, epoch=state.epoch)
            else:
                keep(state.global_step, folder, state.epoch, self._is_own_save)
            self._is_own_save = True

    return Reporter()


def _set_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch of the innermost sampler of a data loader.

    accelerate 1.15 looks only two samplers deep. A resumed Trainer with several ranks has three, so the rest
    of its epoch would have the order of epoch 0: some examples would come twice, others never.
    """
    sampler: Any = getattr(loader, "batch_sampler", None)
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    sampler = getattr(sampler, "sampler", sampler)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
