"""LC107: parameters beside the adapters that stay in float16."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.edit import Edit, insert_after, statement_of
from launcher.check.inference.definitions import path_of
from launcher.check.inference.value import Const, Made, Name, Value
from launcher.check.model_mends import to_float32, upcast_lines
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Model, Script, is_known

_HEADS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS")
_UPCAST = re.compile(
    rb"\.data\s*=\s*\w+\.(data\.)?(float\(|to\(torch\.float)|cast_mixed_precision_params|cast_training_params|\.to\(torch\.float32\)"
)


def find(script: Script) -> Iterator[Problem]:
    """Find configurations of adapters, and layers that are thawed by hand, over a float16 base under a scaler."""
    found = [*_found(script)]
    if found and not any(_UPCAST.search(module.source) for module in script.sources):
        yield from found


def _found(script: Script) -> Iterator[Problem]:
    for training in script.trained:
        if script.is_on(script.flag(training, "fp16")):
            for model in training.models:
                configs = script.config_of(training, model)
                yield from _problems(script, model, configs)
    for accelerator in script.accelerators:
        if script.are(script.keyword(accelerator, "mixed_precision"), "fp16"):
            for model in script.models(tuple(script.prepared)):
                yield from _problems(
                    script, model, tuple(one for made in model.adapters for one in _configs(script, made))
                )
    scaled = [
        one
        for call, holder in script.methods("step")
        if call.args and script.is_scaler(holder)
        for one in script.optimizers(call.args[0])
    ]
    for optimizer in scaled:
        for model in script.trained_by(optimizer):
            yield from _problems(
                script, model, tuple(one for made in model.adapters for one in _configs(script, made))
            )


def _configs(script: Script, adapted: Made) -> Iterator[Made]:
    yield from (one for one in script.argument(adapted, 1, "peft_config") if isinstance(one, Made))


def _problems(script: Script, model: Model, configs: tuple[Made, ...]) -> Iterator[Problem]:
    if model.dtype not in ("float16", "bfloat16"):
        return
    for config in configs:
        saved, task = script.keyword(config, "modules_to_save"), script.keyword(config, "task_type")
        place = None
        what = ""
        if saved and is_known(saved) and not script.are(saved, None):
            place, what = script.written(config, "modules_to_save"), "modules_to_save"
        elif any(_makes_head(one) for one in task):
            place, what = script.written(config, "task_type"), "the new head"
        if place is not None:
            edits = _upcast(script, model) or to_float32(model)
            yield Problem.at(
                place, _message(what, model), "make what is trained float32 after get_peft_model", edits
            )
            return
    thawed = _thawed(script, model) if model.adapters else None
    if thawed is not None:
        edits = _upcast(script, model, after=thawed) or to_float32(model)
        yield Problem(
            script.module, thawed, _message("what is unfrozen here", model), "make it float32 too", edits
        )


def _makes_head(value: Value) -> bool:
    word = value.value if isinstance(value, Const) else value.name if isinstance(value, Name) else ""
    return str(word).rpartition(".")[2] in _HEADS


def _message(what: str, model: Model) -> str:
    return f"{what} is trained in {model.dtype} beside float32 adapters: the scaler fails at the first step"


def _thawed(script: Script, model: Model) -> ast.Assign | None:
    """Return the statement after the adapters that unfreezes some parameters by hand."""
    adapted = model.adapters[-1].call
    for node in script.module.nodes:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Attribute)
            and node.targets[0].attr == "requires_grad"
            and isinstance(node.value, ast.Constant)
            and node.value.value is True
            and model.adapters[-1].frame.module is script.module
            and node.lineno > adapted.lineno
        ):
            return node
    return None


def _upcast(script: Script, model: Model, after: ast.stmt | None = None) -> tuple[Edit, ...]:
    """Return the edit that makes trainable parameters float32 after the statement that adds the adapters."""
    if not model.adapters:
        return ()
    made = model.adapters[-1]
    module = made.frame.module
    statement = statement_of(module, made.call)
    if (
        not isinstance(statement, ast.Assign)
        or statement.value is not made.call
        or not path_of(statement.targets[0])
    ):
        return ()
    name = path_of(statement.targets[0])
    outer = statement
    if after is not None:
        loops = [one for one in module.above(after) if isinstance(one, ast.For | ast.If)]
        outer = loops[-1] if loops else after  # type: ignore[assignment]
    return insert_after(module, outer, upcast_lines(name))


RULE = Rule(
    code="LC107",
    name="half-modules-to-save",
    what="parameters beside LoRA's adapters are trained in float16",
    why="peft makes its adapters float32, and nothing else: modules_to_save, the new head of a classifier (task_type SEQ_CLS), "
    "and layers unfrozen by hand keep the base's float16. The scaler then refuses their gradients: `Attempting to unscale "
    "FP16 gradients.`",
    bad="""model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float16)
model = get_peft_model(model, LoraConfig(modules_to_save=["lm_head"]))
Trainer(model=model, args=TrainingArguments("out", fp16=True), train_dataset=rows).train()
""",
    good="""model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float16)
model = get_peft_model(model, LoraConfig(modules_to_save=["lm_head"]))
for parameter in model.parameters():
    if parameter.requires_grad:
        parameter.data = parameter.data.float()
Trainer(model=model, args=TrainingArguments("out", fp16=True), train_dataset=rows).train()
""",
    source="peft 0.21, tuners/tuners_utils.py, `cast_adapter_dtype`; measured.",
    find=find,
    causes=("fp16-unscale",),
    is_adapted=True,
)
