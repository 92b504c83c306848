"""`--json` output of `explain RUN`, `diagnose` and `plot`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.planning.precision.precision_comparison import PrecisionRow
from launcher.values.precision import Precision
from launcher.values.reported.used_precision import PrecisionSeen


class AttemptPrecisionShown(Part):
    """The precision of an attempt.

    `source` is `seen` if the start-up hook observed `ran`, and `plan` if the script took it from the plan.
    """

    attempt: int
    rung: int
    takes_plan: bool
    source: Literal["seen", "plan"] | None
    ran: PrecisionSeen | None
    seen: list[PrecisionSeen]
    state: str
    reason: str | None


class PrecisionShown(Shape):
    """`launch explain RUN`."""

    kind: Literal["precision"] = "precision"
    run: str
    profile: str
    rehearsed: bool
    attempt: int | None
    wanted: Precision
    rows: list[PrecisionRow]
    verdict: str | None
    rung: int | None
    sentence: str
    next: str | None
    attempts: list[AttemptPrecisionShown]


class DiagnosisShown(Shape):
    """`launch diagnose`: the class of a failure, the log line that proves it, its cause, and the remedy."""

    kind: Literal["diagnosis"] = "diagnosis"
    name: Annotated[str, Field(serialization_alias="class")]
    line: str | None
    line_number: int | None
    why: str
    remedy: str


class PlotShown(Shape):
    """`launch plot`: the picture."""

    kind: Literal["plot"] = "plot"
    run: str
    path: str
