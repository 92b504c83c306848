"""LC110: a model that was made in bfloat16, as a float16 base."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launcher.base.bounded_read import read_bounded
from launcher.base.untrusted_json import decode
from launcher.check.inference.value import Const
from launcher.check.model_mends import to_float32
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Model, Script
from launcher.errors import BadFileError

_MAX_BYTES = 1_000_000


def find(script: Script) -> Iterator[Problem]:
    """Find a model of the script's folder whose own config.json says bfloat16, loaded as float16 and trained in fp16."""
    for model in _trained_in_fp16(script):
        if (
            model.dtype != "float16"
            or model.dtype_at is None
            or not model.adapters
            or not _is_made_in_bf16(script, model)
        ):
            continue
        message = "the model was made in bfloat16: what its layers add up may not fit into float16, and the loss becomes NaN"
        yield Problem.at(model.dtype_at, message, "load the base in float32", to_float32(model))


def _trained_in_fp16(script: Script) -> Iterator[Model]:
    for training in script.trainings:
        if script.is_on(script.flag(training, "fp16")):
            yield from training.models
    for accelerator in script.accelerators:
        if script.are(script.keyword(accelerator, "mixed_precision"), "fp16"):
            yield from script.models(tuple(script.prepared))


def _is_made_in_bf16(script: Script, model: Model) -> bool:
    """Whether the model is a folder beside the script, whose configuration names bfloat16."""
    if model.load is None:
        return False
    given = script.argument(model.load, 0, "pretrained_model_name_or_path")
    folder = script.module.path.parent
    return bool(given) and all(
        isinstance(one, Const) and isinstance(one.value, str) and _type_in(folder, one.value) == "bfloat16"
        for one in given
    )


def _type_in(folder: Path, name: str) -> str:
    """Return the type in a model's configuration; empty outside the folder: a source may name any path."""
    try:
        path = (folder / name / "config.json").resolve()
        if not path.is_relative_to(folder.resolve()):
            return ""
        told = decode(read_bounded(path, _MAX_BYTES))
    except (OSError, RuntimeError, BadFileError, ValueError):
        return ""
    return str(told.get("dtype") or told.get("torch_dtype")) if isinstance(told, dict) else ""


RULE = Rule(
    code="LC110",
    name="bf16-model-in-fp16",
    what="a model made in bfloat16 is the float16 base of a training",
    why="bfloat16 reaches 3e38, float16 only 65504. In a model that was trained in bfloat16 the sum that runs through the layers "
    "can be larger. Over a float16 base that sum is float16 too, so it becomes infinite, and the loss NaN. Over a float32 base "
    "it is float32, and autocast still multiplies in float16. Only a model in a folder beside the script is looked at.",
    bad="""model = AutoModelForCausalLM.from_pretrained("./gemma", dtype=torch.float16)
model = get_peft_model(model, LoraConfig())
Trainer(model=model, args=TrainingArguments("out", fp16=True), train_dataset=rows).train()
""",
    good="""model = AutoModelForCausalLM.from_pretrained("./gemma", dtype=torch.float32)
model = get_peft_model(model, LoraConfig())
Trainer(model=model, args=TrainingArguments("out", fp16=True), train_dataset=rows).train()
""",
    source="Measured with a small Llama; transformers issue 25021.",
    find=find,
    causes=("nan-divergence",),
    is_adapted=True,
)
