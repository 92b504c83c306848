"""`--json` lines of a followed run: `launch`, `attach`, `resume`, `rerun`; also of `metrics` and `logs`."""

from __future__ import annotations

from typing import Literal

from launcher.base.json_file import JsonObject
from launcher.cli.json_output.json_shape import Shape
from launcher.cli.json_output.preview_shapes import UploadShown
from launcher.values.plan import Finding, Plan
from launcher.values.public_result import Number
from launcher.values.record import Parent


class Metric(Shape):
    """One value of one metric; also of `launch metrics`. `step` is null if the log has none."""

    kind: Literal["metric"] = "metric"
    run: str
    attempt: int
    rank: int
    step: int | None
    time: float
    name: str
    value: Number
    rehearsed: bool


class LogLine(Shape):
    """A line that the training printed; also of `launch logs`.

    A very long line comes in pieces: `continues` is true for all but the last.
    """

    kind: Literal["log"] = "log"
    run: str
    attempt: int
    text: str
    node: str
    continues: bool
    rehearsed: bool


class LaunchLine(Shape):
    """A line about a launch. `rehearsed`: a CPU runs the plan of a card."""

    rehearsed: bool


class PlanLine(LaunchLine):
    """The plan of the launch."""

    kind: Literal["plan"] = "plan"
    plan: Plan
    digest: str


class UploadLine(LaunchLine, UploadShown):
    """The upload of the launch."""

    kind: Literal["cargo"] = "cargo"


class StageLine(LaunchLine):
    """A finished stage."""

    kind: Literal["stage"] = "stage"
    name: str
    seconds: float
    text: str | None


class ProgressLine(LaunchLine):
    """The progress of a stage. The figures are null, except for a transfer of bytes."""

    kind: Literal["progress"] = "progress"
    name: str
    text: str
    done: int | None = None
    total: int | None = None
    bytes_per_s: float | None = None
    eta_s: float | None = None
    file: str | None = None


class NoteLine(LaunchLine):
    """A note for people."""

    kind: Literal["note"] = "note"
    text: str


class FindingLine(LaunchLine, Finding):
    """A finding of the checks before the launch."""

    kind: Literal["finding"] = "finding"


class StartedLine(LaunchLine):
    """The run that continues without this client. `job_id` is its Slurm job, null elsewhere."""

    kind: Literal["started"] = "started"
    run: str
    job_id: str | None


class ParentLine(LaunchLine):
    """The run that this one continues."""

    kind: Literal["parent"] = "parent"
    run: str
    parent: Parent


class LinkLine(LaunchLine):
    """The link to the host is `lost` or `back`; with `back`, the other keys are null."""

    kind: Literal["link"] = "link"
    state: Literal["lost", "back"]
    host: str | None = None
    tries: int | None = None
    wait_s: float | None = None
    why: str | None = None


class HomeLine(LaunchLine):
    """Downloaded files of a run, with their sizes in bytes."""

    kind: Literal["home"] = "home"
    run: str
    files: dict[str, int]


class EndLine(LaunchLine):
    """The end of a run, with its local files and metrics. `rent_cents` is the maximum cost of its rented machines, in cents."""

    kind: Literal["end"] = "end"
    run: str
    state: str
    reason: str | None
    evidence: JsonObject | None
    metrics: dict[str, Number]
    home: dict[str, int]
    adapter: str | None
    picture: str | None
    rent_cents: int | None


class EventLine(LaunchLine):
    """An event of the run other than a metric, unchanged: `begin`, `state`, `checkpoint`, `evidence`, `host` and others."""

    run: str
    attempt: int | None
    rank: int
    step: int | None
    time: float
    values: JsonObject
    source: str | None
