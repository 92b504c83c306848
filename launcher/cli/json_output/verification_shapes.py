"""`--json` output of `verify`."""

from __future__ import annotations

from typing import Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.values.precision import Precision
from launcher.values.reported.trial_record import CardMeasured, JobMeasured, TrialEnded
from launcher.verify.verification_report import LargestMicroBatch


class VerifiedRung(Part):
    """A rung, numbered from 1. `result` is `good` or the class of a failure; `measured` has the figures of its trial.

    `differs` lists the differences from the plan; it is null if dtypes, autocast and scaler were not observed.
    `printed` has the last lines of a failed trial.
    """

    rung: int
    precision: Precision
    works: bool
    result: str
    why: str | None
    line: str | None
    micro_batch: int
    measured: JobMeasured | None
    differs: list[str] | None
    printed: list[str]


class VerificationShown(Shape):
    """`launch verify`: the card, the tried rungs, and the conclusions.

    `works`: a launch can begin with rung 1. `fastest` is a faster rung that later launches try before it. `problem` is the
    reason if the run could not be removed from its host.
    """

    kind: Literal["verification"] = "verification"
    run: str
    host: str
    job: str
    profile: str
    rehearsed: bool
    state: str
    reason: str | None
    works: bool
    fastest: int | None
    card: CardMeasured | None
    card_failure: TrialEnded | None
    rungs: list[VerifiedRung]
    largest_micro_batch: LargestMicroBatch | None
    conclusions: list[str]
    problem: str | None
