"""LC402: torch.compile on a card that Triton does not support."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.edit import Edit, replace_node, text_alone
from launcher.check.inference.value import Made
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script

_COMPILE = re.compile(r"torch\.compile")


def find(script: Script) -> Iterator[Problem]:
    """Find compiled models and functions, and the Trainer's flag."""
    if not script.card.lacks_triton:
        return
    message = f"torch.compile needs Triton, which needs capability 7.0; {script.card.title} is below"
    for made in script.calls(_COMPILE):
        if not script.keyword(made, "backend"):
            yield Problem(
                script.module, made.call, message, "leave torch.compile out", _uncompiled(script, made)
            )
    for training in script.trainings:
        if script.is_on(script.flag(training, "torch_compile")):
            for given in training.made_arguments:
                place = script.written(given, "torch_compile")
                if place is not None:
                    edits = script.set_argument(given, "torch_compile", "False")
                    yield Problem.at(place, message, "torch_compile=False", edits)


def _uncompiled(script: Script, made: Made) -> tuple[Edit, ...]:
    above = script.module.parents.get(made.call)
    given = made.call.args[0] if len(made.call.args) == 1 else None
    if given is None or isinstance(given, ast.Starred) or made.call in getattr(above, "decorator_list", []):
        return ()
    return (replace_node(script.module, made.call, text_alone(script.module, given)),)


RULE = Rule(
    code="LC402",
    name="compile-unsupported",
    what="torch.compile on a card below capability 7.0",
    why="torch.compile makes kernels with Triton, which supports capability 7.0 and up. On a P100 the first step fails: "
    "`Found Tesla P100 which is too old to be supported by the triton GPU compiler`.",
    bad="""model = torch.compile(model)  # --profile p100
""",
    good="""model = model
""",
    source="torch 2.13, torch/_inductor/scheduler.py.",
    find=find,
    needs_card=True,
)
