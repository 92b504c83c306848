"""LC301: a checkpoint to resume from that nothing reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from launcher.check.edit import set_keyword
from launcher.check.inference.definitions import path_of
from launcher.check.inference.value import Instance, Made
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script, Training


def find(script: Script) -> Iterator[Problem]:
    """Find training arguments that name a checkpoint, where `train()` is not given it."""
    for training in script.trainings:
        for made in training.made_arguments:
            place = script.written(made, "resume_from_checkpoint")
            if place is None or (isinstance(place.node, ast.Constant) and not place.node.value):
                continue
            trains = [*_trains(script, training)]
            if not trains or any(call.args or call.keywords for call, _ in trains):
                continue
            for call, holder in trains:
                path = path_of(holder)
                given = f"{path or 'trainer'}.args.resume_from_checkpoint"
                edits = (set_keyword(script.module, call, "resume_from_checkpoint", given),) if path else ()
                message = "resume_from_checkpoint of the training arguments is not read: train() begins anew"
                mend = f"{path or 'trainer'}.train(resume_from_checkpoint={given})"
                yield Problem(script.module, call, message, mend, edits)


def _trains(script: Script, training: Training) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the calls of a trainer's `train`."""
    for call, holder in script.methods("train"):
        made = script.values(holder)
        if any(isinstance(one, Made | Instance) and one.call is training.call for one in made):
            yield call, holder


RULE = Rule(
    code="LC301",
    name="resume-ignored",
    what="resume_from_checkpoint where nothing reads it",
    why="The Trainer does not read this field of its arguments: it is there for scripts that pass it on to `train()`. After a "
    "crash the training begins anew, and overwrites its checkpoints.",
    bad="""arguments = TrainingArguments("out", resume_from_checkpoint="out/checkpoint-500")
trainer = Trainer(model=model, args=arguments, train_dataset=rows)
trainer.train()
""",
    good="""arguments = TrainingArguments("out", resume_from_checkpoint="out/checkpoint-500")
trainer = Trainer(model=model, args=arguments, train_dataset=rows)
trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
""",
    source="transformers 5.23, training_args.py (the field's own documentation) and trainer.py; measured.",
    find=find,
)
