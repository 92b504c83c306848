"""LC108: a Trainer that logs a NaN loss as 0.0."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script


def find(script: Script) -> Iterator[Problem]:
    """Find a Trainer in fp16 whose filter is on, as it is by default."""
    for training in script.trained:
        is_filtering = all(
            not given or script.are(given, True, None)
            for given in [script.flag(training, "logging_nan_inf_filter")]
        )
        if not is_filtering or not script.is_on(script.flag(training, "fp16")):
            continue
        for made in training.made_arguments:
            place = script.written(made, "fp16") or script.place(made)
            message = "with fp16, a NaN loss is logged as 0.0: logging_nan_inf_filter is on by default"
            edits = script.set_argument(made, "logging_nan_inf_filter", "False")
            yield Problem.at(place, message, "logging_nan_inf_filter=False", edits)


RULE = Rule(
    code="LC108",
    name="nan-filter",
    what="fp16 with a filter that hides NaN",
    why="By default the Trainer leaves a NaN or infinite loss out of the mean that it logs, so that a training that has "
    "become NaN shows a loss of 0.0, and exits with 0. Only grad_norm shows it.",
    bad="""arguments = TrainingArguments("out", fp16=True)
""",
    good="""arguments = TrainingArguments("out", fp16=True, logging_nan_inf_filter=False)
""",
    source="transformers 5.23, trainer.py; measured.",
    find=find,
    is_adapted=True,
)
