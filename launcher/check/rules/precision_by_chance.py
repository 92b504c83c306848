"""LC104: an Accelerator that takes its precision from the environment."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.check.edit import set_keyword
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script


def find(script: Script) -> Iterator[Problem]:
    """Find an Accelerator of a training that is not given `mixed_precision`."""
    trains = any(True for _ in script.methods("backward", "prepare"))
    for made in script.accelerators if trains else ():
        if (
            script.keyword(made, "mixed_precision")
            or script.keyword(made, "deepspeed_plugin")
            or made.call.args[2:]
        ):
            continue
        message = "Accelerator() takes its precision from ACCELERATE_MIXED_PRECISION or the host's configuration file"
        edits = (set_keyword(script.module, made.call, "mixed_precision", '"no"'),)
        yield Problem(
            script.module, made.call, message, 'name it: mixed_precision="no" | "fp16" | "bf16"', edits
        )


RULE = Rule(
    code="LC104",
    name="precision-by-chance",
    what="Accelerator() without mixed_precision",
    why="Without the argument, accelerate reads the variable ACCELERATE_MIXED_PRECISION; `accelerate launch` sets it from "
    "the configuration file of the host. The same script then trains in float32 on one host and in bf16 on another. In "
    "capitals (`BF16`) the variable is ignored without a word.",
    bad="""accelerator = Accelerator()
model, optimizer = accelerator.prepare(model, optimizer)
""",
    good="""accelerator = Accelerator(mixed_precision="no")
model, optimizer = accelerator.prepare(model, optimizer)
""",
    source="accelerate 1.15, state.py and commands/launch.py; measured.",
    find=find,
    is_adapted=True,
)
