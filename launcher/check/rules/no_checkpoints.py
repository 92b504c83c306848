"""LC302: a training that saves nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.inference.value import Const, Name
from launcher.check.reading.module import Module
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script

_SAVES = re.compile(
    r"save|dump|checkpoint|push_to_hub|export|write|upload|log_model|log_artifact|launcher_worker",
    re.IGNORECASE,
)


def find(script: Script) -> Iterator[Problem]:
    """Find a Trainer that saves nothing, and a loop of steps in sources that save nothing."""
    found = [*_found(script)]
    if found and not any(
        _SAVES.search(_called(call)) for module in script.sources for call, _ in module.calls
    ):
        yield from found


def _found(script: Script) -> Iterator[Problem]:
    for training in script.trained:
        if _is_off(script.flag(training, "save_strategy")):
            for made in training.made_arguments:
                place = script.written(made, "save_strategy")
                if place is not None:
                    edits = script.set_argument(made, "save_strategy", '"steps"')
                    yield Problem.at(place, _message("save_strategy"), 'save_strategy="steps"', edits)
    if not script.trainings and _is_program(script.module):
        yield from _loops(script)


def _is_program(module: Module) -> bool:
    """Whether a file starts something by itself, so that it is not a library's."""
    calls = (one.value for one in module.tree.body if isinstance(one, ast.Expr | ast.Assign))
    loops = any(isinstance(one, ast.For | ast.While | ast.With) for one in module.tree.body)
    is_main = b"__main__" in module.source
    return (
        is_main or loops or any(isinstance(one, ast.Call) and isinstance(one.func, ast.Name) for one in calls)
    )


def _loops(script: Script) -> Iterator[Problem]:
    for call, holder in script.methods("step"):
        is_looped = any(isinstance(one, ast.For | ast.While) for one in script.module.above(call))
        if is_looped and not call.args and script.optimizers(holder):
            yield Problem(
                script.module,
                call,
                _message("the script"),
                "torch.save the model, the optimizer and the step, every so often",
            )
            return


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_off(values: tuple[object, ...]) -> bool:
    return bool(values) and all(
        (isinstance(one, Const) and one.value == "no")
        or (isinstance(one, Name) and one.name.endswith("Strategy.NO"))
        for one in values
    )


def _message(who: str) -> str:
    return f"{who}: nothing is saved, so a crash, a time limit or the end of the run loses the training"


RULE = Rule(
    code="LC302",
    name="no-checkpoints",
    what="a training that saves nothing",
    why="Without a checkpoint nothing can be resumed, and without a save at the end there is no result. A rented card, a "
    "session at Kaggle and a job of Slurm all end at a limit.",
    bad="""arguments = TrainingArguments("out", save_strategy="no")
Trainer(model=model, args=arguments, train_dataset=rows).train()
""",
    good="""arguments = TrainingArguments("out", save_strategy="steps")
Trainer(model=model, args=arguments, train_dataset=rows).train()
""",
    source="transformers 5.23, training_args.py.",
    find=find,
)
