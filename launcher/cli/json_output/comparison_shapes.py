"""`compare` with --json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.compare.code_differences import TreeDifference
from launcher.compare.plan_differences import Difference
from launcher.metrics.metric_results import MetricResult


def _values(found: object) -> object:
    """Return the values of a mapping; a list as it is."""
    return list(found.values()) if isinstance(found, Mapping) else found


class ComparedRunShown(Part):
    """One of the runs that are compared, as this client has it. `seconds` is how long it took, or has taken so far.

    `has_plan` and `has_manifest`: its plan, and what was sent for it, are on record here. `code` is the digest of its code.
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
    """A file of the code that differs, and its version for each run: SHA-256, or words; null where there is none.

    With --diff, `diff` is the unified diff, or `why` says why there is none.
    """

    path: str
    versions: list[str | None]
    diff: str | None
    why: str | None


class ComparisonShown(Shape):
    """`launch compare`: the runs as they were given, and what differs. `picture` is null if none has a curve."""

    kind: Literal["comparison"] = "comparison"
    runs: list[ComparedRunShown]
    plan: list[Difference]
    trees: list[TreeDifference]
    files: list[FileDifferenceShown]
    picture: str | None
