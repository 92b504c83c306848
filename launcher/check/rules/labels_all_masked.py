"""LC502: a template that masks every label."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.inference.value import Const, Made
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script

_COLLATOR = re.compile(r"trl(\.\w+)*\.DataCollatorForCompletionOnlyLM")
_MARK = re.compile(r"###|<\||\[/?INST\]|</?s>|:\s*$", re.MULTILINE)


def find(script: Script) -> Iterator[Problem]:
    """Find a response template that the script's own prompts lack, and a chat template without generation marks."""
    for made in script.calls(_COLLATOR):
        given = script.argument(made, 0, "response_template")
        if len(given) == 1 and isinstance(given[0], Const) and isinstance(given[0].value, str):
            yield from _of_template(script, made, given[0].value)
    for training in script.trainings:
        if script.is_on(script.flag(training, "assistant_only_loss")):
            for node in script.module.nodes:
                if isinstance(node, ast.Assign) and _is_chat_template(node.targets[0]):
                    values = script.values(node.value)
                    if all(
                        isinstance(one, Const) and not re.search(r"{%-?\s*generation\b", str(one.value))
                        for one in values
                    ):
                        message = "assistant_only_loss takes the answers from {% generation %} in the chat template, which has none"
                        yield Problem(
                            script.module,
                            node,
                            message,
                            "write {% generation %}…{% endgeneration %} around the answer",
                        )


def _of_template(script: Script, made: Made, template: str) -> Iterator[Problem]:
    prompts = [*_prompts(script, made)]
    if prompts and template.strip() and not any(template.strip() in one for one in prompts):
        place = script.written(made, "response_template")
        node = place.node if place is not None else made.call
        module = place.module if place is not None else script.module
        message = (
            f"no prompt of the script contains {template!r}: every label is masked, and the loss is NaN or 0"
        )
        yield Problem(module, node, message, "the words that come before each answer in the prompts")


def _prompts(script: Script, made: Made) -> Iterator[str]:
    """Yield the texts of the script's functions that look like prompts, but are not for questions to the model."""
    for node in script.module.nodes:
        if isinstance(node, ast.FunctionDef | ast.Lambda) and not _asks_model(node):
            words = "".join(
                str(one.value)
                for one in ast.walk(node)
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )
            if _MARK.search(words) and made.call not in [*ast.walk(node)]:
                yield words


def _asks_model(function: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "generate" for one in ast.walk(function))


def _is_chat_template(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "chat_template"


RULE = Rule(
    code="LC502",
    name="labels-all-masked",
    what="a template that masks every label",
    why="Training on the answer alone masks all before a template. If the prompts do not contain the template, every label is "
    "-100: the loss is NaN or 0.0, and nothing is learned.",
    bad="""def prompt(row):
    return f"### Question: {row['q']} ### Answer: {row['a']}"


collator = DataCollatorForCompletionOnlyLM("### Response:", tokenizer=tokenizer)
""",
    good="""def prompt(row):
    return f"### Question: {row['q']} ### Answer: {row['a']}"


collator = DataCollatorForCompletionOnlyLM("### Answer:", tokenizer=tokenizer)
""",
    source="TRL, trainer/utils.py before 0.20; TRL 1.16, sft_trainer.py.",
    find=find,
    is_mended=False,
)
