"""LC403: tf32 on a card that does not have it."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script


def find(script: Script) -> Iterator[Problem]:
    """Find the Trainer's flag."""
    card = script.card
    if not card.is_before_ampere:
        return
    for training in script.trainings:
        if script.is_on(script.flag(training, "tf32")):
            for made in training.made_arguments:
                place = script.written(made, "tf32")
                if place is not None:
                    message = f"tf32=True needs capability 8.0 (Ampere); on {card.title} TrainingArguments raises ValueError"
                    yield Problem.at(place, message, "tf32=False", script.set_argument(made, "tf32", "False"))


RULE = Rule(
    code="LC403",
    name="tf32-unsupported",
    what="tf32=True on a card before Ampere",
    why="TrainingArguments refuses it with a ValueError before the training begins. `torch.backends.cuda.matmul.allow_tf32 = "
    "True` is harmless on any card.",
    bad="""arguments = TrainingArguments("out", tf32=True)  # --profile v100_16gb
""",
    good="""arguments = TrainingArguments("out", tf32=False)
""",
    source="transformers 5.23, training_args.py; measured on a CPU.",
    find=find,
    needs_card=True,
)
