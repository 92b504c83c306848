"""LC101: an fp16 loss scaler over parameters that are not float32."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from launcher.check.edit import insert_after, statement_of
from launcher.check.inference.definitions import path_of
from launcher.check.model_mends import to_float32, upcast_lines
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Model, Script, Training

_SINCE = "1.16.0"
"""The version of TRL whose trainers were seen to do so; sft_trainer.py, dpo_trainer.py, grpo_trainer.py."""
_UPCAST = re.compile(
    rb"\.data\s*=\s*\w+\.(data\.)?(float\(|to\((dtype=)?torch\.float)|cast_mixed_precision_params|cast_training_params"
)
_HALVES = ("float16", "bfloat16")


def find(script: Script) -> Iterator[Problem]:
    """Find half-precision trainable parameters under a scaler of the Trainer, of accelerate or of the script."""
    found = [*_found(script)]
    if found and not any(_UPCAST.search(module.source) for module in script.sources):
        yield from found


def _found(script: Script) -> Iterator[Problem]:
    for training in script.trained:
        if script.is_on(script.flag(training, "fp16")):
            is_adapted = bool(training.keywords.get("peft_config"))
            yield from _problems(script, [] if is_adapted else training.models, "fp16=True")
            yield from _quantized(script, training)
    for accelerator in script.accelerators:
        if script.are(script.keyword(accelerator, "mixed_precision"), "fp16"):
            yield from _problems(script, list(_prepared(script)), 'mixed_precision="fp16"')
    for call, holder in script.methods("step"):
        if call.args and script.is_scaler(holder):
            for optimizer in script.optimizers(call.args[0]):
                yield from _problems(script, script.trained_by(optimizer), "GradScaler")


def _quantized(script: Script, training: Training) -> Iterator[Problem]:
    """Find a trainer of TRL that gets a quantized model: it makes the adapters bfloat16."""
    for model in training.models if ".trl." in f".{training.name}" else ():
        load = model.load
        if (
            load is None
            or script.written(load, "quantization_config") is None
            or not script.admits("trl", _SINCE)
        ):
            continue
        if not (model.adapters or training.keywords.get("peft_config")):
            continue
        statement = statement_of(training.module, training.call)
        target = path_of(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        edits = (
            insert_after(training.module, statement, upcast_lines(f"{target}.model"))
            if statement and target
            else ()
        )
        message = "fp16=True scales the loss, but TRL makes the adapters of a quantized model bfloat16: the first step fails"
        mend = "make what is trained float32 before train()"
        yield Problem(training.module, training.call, message, mend, edits)


def _prepared(script: Script) -> Iterator[Model]:
    """Yield the models among the arguments of `accelerator.prepare`."""
    for call, _ in script.methods("prepare"):
        for argument in call.args:
            yield from (one for one in script.models(script.values(argument)) if one.dtype)


def _problems(script: Script, models: Sequence[Model], scaler: str) -> Iterator[Problem]:
    """Yield a problem if every possible model has half-precision trainable parameters."""
    for model in models if models and all(_is_trained_in_half(script, one) for one in models) else ():
        place = model.dtype_at
        if place is None:
            continue
        message = f"{scaler} scales the loss, but the model's trainable parameters are {model.dtype}: the first step fails"
        yield Problem.at(
            place, message, "load the model in float32; autocast still computes in fp16", to_float32(model)
        )


def _is_trained_in_half(script: Script, model: Model) -> bool:
    """Whether trainable parameters are half: all of a plain model, or adapters that peft is told not to cast."""
    if model.dtype not in _HALVES:
        return False
    return not model.adapters or any(
        script.are(script.keyword(one, "autocast_adapter_dtype"), False) for one in model.adapters
    )


RULE = Rule(
    code="LC101",
    name="fp16-trainables",
    what="fp16 AMP scales gradients of parameters that are float16 or bfloat16",
    why="The loss scaler multiplies the loss, then divides each gradient. torch refuses to divide a float16 gradient: "
    "`ValueError: Attempting to unscale FP16 gradients.` A bfloat16 gradient fails on a card in the same step. "
    "Gradients have the type of their parameters, so the parameters that are trained must be float32; autocast still "
    "computes in fp16. An adapter of peft over a float16 base is fine, because peft makes its own parameters float32. TRL makes those of a quantized "
    "model bfloat16.",
    bad="""model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float16)
arguments = TrainingArguments("out", fp16=True)
Trainer(model=model, args=arguments, train_dataset=rows).train()
""",
    good="""model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
arguments = TrainingArguments("out", fp16=True)
Trainer(model=model, args=arguments, train_dataset=rows).train()
""",
    source="Measured with torch 2.13 and transformers 5.23; torch/amp/grad_scaler.py, `_unscale_grads_`.",
    find=find,
    causes=("fp16-unscale",),
    is_adapted=True,
)
