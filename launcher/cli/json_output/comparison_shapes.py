"""`--json` output of `compare`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.compare.code_differences import TreeDifference
from launcher.metrics.metric_results import MetricResult
from launcher.planning.plan_differences import Difference


def _values(found: object) -> object:
    """Return the values of a mapping as a list. Return anything else unchanged."""
    return list(found.values()) if isinstance(found, Mapping) else found


class ComparedRunShown(Part):
    """One of the compared runs, from its local copy. `seconds` is its duration, or its time so far.

    `has_plan`: its plan is in the local copy. `has_manifest`: the list of its uploaded files is in the local
    copy too. `code` is the digest of its code.
    """

    run: str
    job: str | None
    host: str | None
    card: str | None
    rehearsed: bool
    has_plan: bool
    has_manifest: bool
    state: str | None
    reason: str | None
    attempts: int | None
    step: int | None
    steps: int | None
    seconds: float | None
    precision: str | None
    torch: str | None
    code: str | None
    metrics: Annotated[list[MetricResult], BeforeValidator(_values)]


class FileDifferenceShown(Part):
    """A code file that differs, and its version for each run: a SHA-256, a text, or null if the run lacks the file.

    With --diff, `diff` is the unified diff; if it is missing, `why` is the reason.
    """

    path: str
    versions: list[str | None]
    diff: str | None
    why: str | None


class ComparisonShown(Shape):
    """`launch compare`: the runs in the order given, and their differences. `picture` is null if no run has a curve."""

    kind: Literal["comparison"] = "comparison"
    runs: list[ComparedRunShown]
    plan: list[Difference]
    trees: list[TreeDifference]
    files: list[FileDifferenceShown]
    picture: str | None
