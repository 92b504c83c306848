"""transformers' TrainingArguments and Trainer: precision, split, resume, callback, and a model safe to train."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from typing import Any, Dict

from ..precision.mixed_precision import configure_accelerate, kind_of_checkpointing
from ..saving.checkpoints import resume_from, save
from ..shield import shielded
from ..trainer import trainer_callback
from ..values import Knobs, knobs
from .adapted_models import adapt_model, autocasting_models
from .adapted_split import adapted_split
from .changes import changes

_FUSED = "adamw_torch_fused"


@shielded
def adapt_arguments(module: Any) -> None:
    """Make every TrainingArguments follow the plan; `module` is transformers.training_args."""
    kind = module.TrainingArguments
    original = kind.__post_init__

    @functools.wraps(original)
    def post_init(self: Any) -> None:
        with shielded:
            _follow_plan(self)
        original(self)

    kind.__post_init__ = post_init


def _follow_plan(arguments: Any) -> None:
    values = knobs()
    name = type(arguments).__name__
    if getattr(arguments, "deepspeed", None):
        changes.leave("precision and batch of a DeepSpeed configuration")
        return
    for key, planned in {**_precision(values), **_batch(values, arguments), **_safety(arguments)}.items():
        own = getattr(arguments, key, None)
        if not hasattr(arguments, key) or own == planned:
            continue
        changes.change(name, key, getattr(own, "value", own), planned)
        setattr(arguments, key, planned)
    values.consume("precision")
    configure_accelerate(values, "fp16" if arguments.fp16 else "bf16" if arguments.bf16 else "no")


def _precision(values: Knobs) -> Dict[str, object]:
    precision = values.peek.precision
    planned: Dict[str, object] = {
        "fp16": precision.autocast_dtype == "float16",
        "bf16": precision.autocast_dtype == "bfloat16",
        "fp16_full_eval": False,  # a full half-precision evaluation casts the live model
        "bf16_full_eval": False,
    }
    if precision.tf32 and not values.rehearsed:
        planned["tf32"] = True
    if precision.trainable_dtype == "float16":
        planned["adam_epsilon"] = precision.adam_eps
    return planned


def _batch(values: Knobs, arguments: Any) -> Dict[str, object]:
    micro, accumulation = adapted_split(
        arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    )
    planned: Dict[str, object] = {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
    }
    if values.steps is not None:
        planned["max_steps"] = values.peek.steps
    if values.activation_checkpointing:
        planned[f"{kind_of_checkpointing(arguments)}_checkpointing"] = True
    return planned


def _safety(arguments: Any) -> Dict[str, object]:
    """Return arguments that keep failures visible: a NaN loss is not logged as 0.0, and no fused optimizer hides a skipped step."""
    planned: Dict[str, object] = {"logging_nan_inf_filter": False}
    is_fused = getattr(arguments.optim, "value", arguments.optim) == _FUSED
    if is_fused and knobs().peek.precision.scaler:
        planned["optim"] = "adamw_torch"
    return planned


@shielded
def adapt_trainer(module: Any) -> None:
    """Make every Trainer train a safe model, resume and report; `module` is transformers.trainer."""
    kind = module.Trainer
    init, train = kind.__init__, kind.train

    @functools.wraps(init)
    def begin(self: Any, model: Any = None, *args: Any, **kwargs: Any) -> None:
        if model is not None:
            with shielded:
                adapt_model(model)
        init(self, model, *args, **kwargs)
        with shielded:
            if model is None:
                adapt_model(self.model)
            autocasting_models.add(self.model)
            _add_callback(self)

    @functools.wraps(train)
    def resumed(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        with shielded:
            ours = resume_from()
            if ours is not None and not isinstance(resume_from_checkpoint, (str, os.PathLike)):
                changes.change("Trainer.train", "resume_from_checkpoint", resume_from_checkpoint, ours)
                resume_from_checkpoint = ours
        return train(self, resume_from_checkpoint, *args, **kwargs)

    kind.__init__, kind.train = begin, resumed


def _add_callback(trainer: Any) -> None:
    """Add the worker's callback, which copies checkpoints to the agent's folder, unless the script has one."""
    callbacks = trainer.callback_handler.callbacks
    if any(type(one).__module__ == "launcher_worker.trainer" for one in callbacks):
        return
    reporter = trainer_callback(_keep)
    trainer.add_callback(reporter)
    changes.add("Trainer: reports its steps, saves checkpoints for a resume, and is under the guard")


def _keep(step: int, folder: str, epoch: Any, is_own: bool) -> None:
    """Seal a copy of a Trainer's checkpoint, made of links.

    Remove the original unless it is the script's own.
    """

    def write(target: str) -> None:
        shutil.copytree(folder, target, copy_function=_link, dirs_exist_ok=True)

    save(step, write, epoch)
    if not is_own:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(folder))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
