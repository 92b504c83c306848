"""`--json` output of `explain`."""

from __future__ import annotations

from typing import Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.planning.precision.ladder import Excluded
from launcher.values.model import Model
from launcher.values.plan import Finding, Submission
from launcher.values.precision import Precision


class StepMemory(Part):
    """The memory of a step with a micro-batch of 1, by its parts, and the plan's reserve for CUDA, in bytes."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    reserve: int


class LadderShown(Shape):
    """`launch explain`: the precisions of a job on a card, the excluded ones, and the findings of a launch.

    `memory` has one entry for each rung; it is empty if the model is unknown. `checkpointing`: activation checkpointing is on.
    `sharding`: the model is divided among the cards.
    """

    kind: Literal["ladder"] = "ladder"
    profile: str
    method: str
    model: Model | None
    ladder: list[Precision]
    excluded: list[Excluded]
    memory: list[StepMemory]
    checkpointing: bool
    sharding: bool
    findings: list[Finding]
    inject: bool
    takes: list[str]
    slurm: Submission | None = None
