"""`verify` with --json."""

from __future__ import annotations

from typing import Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.values.precision import Precision
from launcher.values.reported.trial_record import CardMeasured, JobMeasured, TrialEnded
from launcher.verify.verification_report import LargestMicroBatch


class VerifiedRung(Part):
    """A rung, from 1: how its trial ended (`good`, or the class of a failure), what it measured, and what was not as planned.

    `differs` is null if nothing was seen of dtypes, autocast and scaler. `printed` are the last lines of one that failed.
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
    """`launch verify`: the card, the rungs that were tried, and what follows.

    `works`: a launch can begin with rung 1. `fastest` is a rung that goes before it. `problem` is what could not be removed.
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
