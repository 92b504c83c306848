"""LC102: bfloat16 on a card that does not compute it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.edit import Edit, rename_keyword, replace
from launcher.check.inference.value import Instance, Made, Place
from launcher.check.model_mends import with_type
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script, Training, dtype_of

_AUTOCAST = re.compile(r"torch(\.cuda|\.cpu)?(\.amp)?(\.autocast_mode)?\.autocast")
_LOADED = re.compile(r"transformers(\.\w+)*\.from_pretrained")
_GATE = re.compile(r"is_bf16_supported|is_torch_bf16_gpu_available")
_MAX_FOLLOWED = 12
"""Expressions that are looked at for the origin of a value."""
_QUANTIZED = re.compile(r"transformers(\.\w+)*\.BitsAndBytesConfig")


def find(script: Script) -> Iterator[Problem]:
    """Find bf16 in training arguments, accelerate, autocast and the type of a model."""
    if not script.card.lacks_bf16:
        return
    for training in script.trainings:
        yield from _default(script, training)
        if script.is_on(script.flag(training, "bf16")):
            for made in training.made_arguments:
                yield from _flag(script, made)
    for made in script.accelerators:
        place = script.written(made, "mixed_precision")
        if (
            place is not None
            and script.are(script.keyword(made, "mixed_precision"), "bf16")
            and not _asks(script, place)
        ):
            yield _problem(script, place, 'mixed_precision="bf16"', '"fp16"', (replace(place, '"fp16"'),))
    for made in script.calls(_AUTOCAST):
        given = script.keyword(made, "dtype") or script.argument(made, 1, "dtype")
        place = script.written(made, "dtype")
        is_cpu = "cpu" in made.name or script.are(script.argument(made, 0, "device_type"), "cpu")
        is_entry = isinstance(script.module.parents.get(made.call), ast.Dict)  # one of several, for an option
        if (
            place is not None
            and not is_cpu
            and not is_entry
            and {dtype_of(one) for one in given} == {"bfloat16"}
        ):
            yield _problem(script, place, "autocast to bfloat16", "float16, and a GradScaler for the loss")
    yield from _types(script)
    yield from _loops(script)


def _loops(script: Script) -> Iterator[Problem]:
    """Find models that an optimizer of the script steps in bfloat16."""
    for call, holder in script.methods("step"):
        for optimizer in () if call.args else script.optimizers(holder):
            for model in script.trained_by(optimizer):
                place = model.dtype_at if model.dtype == "bfloat16" else None
                if place is not None and not _asks(script, place):
                    yield _problem(
                        script, place, "the model's type bfloat16", "float32", _typed(place, "float32")
                    )


def _flag(script: Script, made: Made | Instance) -> Iterator[Problem]:
    place = script.written(made, "bf16")
    if place is None or _asks(script, place):
        return
    keyword = next((one for one in (made.call.keywords if made.call else ()) if one.arg == "bf16"), None)
    edits: tuple[Edit, ...]
    if script.written(made, "fp16") is None and keyword is not None and _is_true(keyword.value):
        edits = (rename_keyword(made.frame.module, keyword, "fp16"),)
    else:
        on = script.set_argument(made, "fp16", "True")
        edits = (replace(place, "False"), *on) if on else ()
    yield _problem(script, place, "bf16=True", "fp16=True", edits)


def _default(script: Script, training: Training) -> Iterator[Problem]:
    """Find arguments of TRL that name no precision: TRL takes bf16 then."""
    for made in training.made_arguments:
        if (
            isinstance(made, Made)
            and made.name.startswith("trl.")
            and not script.keyword(made, "bf16")
            and not script.keyword(made, "fp16")
        ):
            edits = script.set_argument(made, "fp16", "True")
            yield _problem(
                script,
                script.place(made),
                f"{made.name.rpartition('.')[2]} takes bf16 by default",
                "fp16=True",
                edits,
            )


def _types(script: Script) -> Iterator[Problem]:
    """Find models that are loaded, or computed after dequantizing, in bfloat16."""
    trained = {
        model.load.call
        for training in script.trainings
        for model in training.models
        if model.load and not model.adapters
    }
    for made in script.calls(_LOADED):
        place = script.written(made, "dtype", "torch_dtype")
        given = script.keyword(made, "dtype") or script.keyword(made, "torch_dtype")
        if (
            place is not None
            and not _asks(script, place)
            and {dtype_of(one) for one in given} == {"bfloat16"}
        ):
            better = "float32" if made.call in trained else "float16"
            yield _problem(script, place, "the model's type bfloat16", better, _typed(place, better))
    for made in script.calls(_QUANTIZED):
        place = script.written(made, "bnb_4bit_compute_dtype")
        given = script.keyword(made, "bnb_4bit_compute_dtype")
        if (
            place is not None
            and not _asks(script, place)
            and {dtype_of(one) for one in given} == {"bfloat16"}
        ):
            yield _problem(
                script, place, "bnb_4bit_compute_dtype bfloat16", "float16", _typed(place, "float16")
            )


def _typed(place: Place, name: str) -> tuple[Edit, ...]:
    """Return the edits that write another type, only where the type itself is written."""
    return (
        with_type(place, name)
        if isinstance(place.node, ast.Constant) or ast.unparse(place.node) == "torch.bfloat16"
        else ()
    )


def _asks(script: Script, place: Place) -> bool:
    """Whether a value depends on torch's answer about bf16, which is another rule's business."""
    waiting, seen = [place.node], 0
    frame = script.inference.frame(place.module, place.node)
    while waiting and seen < _MAX_FOLLOWED:
        node = waiting.pop()
        seen += 1
        around = [one.test for one in place.module.above(node) if isinstance(one, ast.If)]
        if any(_GATE.search(ast.unparse(one)) for one in (node, *around)):
            return True
        names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
        waiting += [found for one in names for found in script.inference.definitions(one, frame)]
    return False


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _problem(script: Script, place: Place, what: str, better: str, edits: tuple[Edit, ...] = ()) -> Problem:
    message = f"{what}: {script.card.title} does not compute bfloat16; it is emulated slowly, or fails"
    return Problem.at(place, message, better, edits)


RULE = Rule(
    code="LC102",
    name="bf16-unsupported",
    what="bfloat16 on a card below compute capability 8.0",
    why="Cards before Ampere have no bfloat16. torch emulates it in float32 on Turing (TITAN RTX, T4), which is slow, and "
    "a Pascal card (P100) ends with CUBLAS_STATUS_NOT_SUPPORTED. transformers accepts bf16=True there without a word, "
    "because it asks `torch.cuda.is_bf16_supported()`, which counts emulation.",
    bad="""arguments = TrainingArguments("out", bf16=True)  # --profile t4
""",
    good="""arguments = TrainingArguments("out", fp16=True)
""",
    source="torch/cuda/__init__.py, `is_bf16_supported`; pytorch issue 57773; unslothai and LLaMA-Factory issue 7417.",
    find=find,
    causes=("bf16-unsupported",),
    is_adapted=True,
    needs_card=True,
)
