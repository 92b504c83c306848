"""LC106: Adam over float16 parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.check.edit import Edit
from launcher.check.inference.value import Const
from launcher.check.model_mends import to_float32
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Model, Script, Training

_ADAM = re.compile(r"(torch\.optim(\.\w+)*|transformers(\.\w+)*)\.\w*Adam\w*")
_LEAST_EPS = 1e-6
_MEND = "load the model in float32, and let autocast compute in fp16"


def find(script: Script) -> Iterator[Problem]:
    """Find float16 parameters that a Trainer, or an optimizer of the script, steps without a scaler."""
    for training in script.trained:
        yield from _of_trainer(script, training)
    if any(
        given and not script.are(given, "no", None)
        for given in (script.keyword(one, "mixed_precision") for one in script.accelerators)
    ):
        return
    for call, holder in script.methods("step"):
        if not call.args and not script.is_scaler(holder):
            for optimizer in script.optimizers(holder):
                if _ADAM.fullmatch(optimizer.name) and _is_zero(script, script.argument(optimizer, 3, "eps")):
                    yield from _problems(script.trained_by(optimizer), optimizer.name.rpartition(".")[2])


def _of_trainer(script: Script, training: Training) -> Iterator[Problem]:
    flags = [script.flag(training, name) for name in ("fp16", "bf16")]
    is_plain = all(not one or script.are(one, False, None) for one in flags) and not training.keywords.get(
        "peft_config"
    )
    optimizer = script.flag(training, "optim")
    is_adam = not optimizer or all(
        isinstance(one, Const) and "adam" in str(one.value or "adam") for one in optimizer
    )
    if (
        is_plain
        and is_adam
        and _is_zero(script, script.flag(training, "adam_epsilon"))
        and "trl." not in training.name
    ):
        edits = tuple(
            edit for made in training.made_arguments for edit in script.set_argument(made, "fp16", "True")
        )
        yield from _problems(training.models, "the Trainer's AdamW", edits)


def _is_zero(script: Script, eps: tuple[object, ...]) -> bool:
    """Whether Adam's eps is certainly 0 in float16, as its default is."""
    return all(isinstance(one, Const) and (one.value is None or float(one.value) < _LEAST_EPS) for one in eps)


def _problems(models: tuple[Model, ...], optimizer: str, edits: tuple[Edit, ...] = ()) -> Iterator[Problem]:
    if not models or any(one.dtype != "float16" or one.adapters for one in models):
        return
    for model in models:
        if model.dtype_at is not None:
            own = to_float32(model)
            message = f"{optimizer} steps float16 parameters: its eps of 1e-8 is 0 in float16, and the weights become NaN"
            yield Problem.at(model.dtype_at, message, _MEND, (*own, *edits) if own else ())


RULE = Rule(
    code="LC106",
    name="pure-fp16-optimizer",
    what="Adam steps float16 parameters",
    why="The smallest float16 is 6e-8, so Adam's eps of 1e-8 is 0, and so is the square of a usual gradient: the step divides "
    "by 0. A small Llama has NaN in its weights after the first step. The fused Adam gets further, and then diverges. Mixed "
    "precision keeps float32 weights and needs no more time.",
    bad="""model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float16).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
""",
    good="""model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
""",
    source="Measured with torch 2.13: AdamW on [1, 1, 1] with gradients [1e-3, 0, 1e-1] gives [-inf, nan, 0.999].",
    find=find,
    causes=("nan-divergence",),
    is_adapted=True,
)
