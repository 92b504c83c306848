"""The lines of a run that is followed: `launch --json`, `attach`, `resume`, `rerun`; also `metrics` and `logs`."""

from __future__ import annotations

from typing import Literal

from launcher.base.json_file import JsonObject
from launcher.cli.json_output.json_shape import Shape
from launcher.cli.json_output.preview_shapes import CargoShown
from launcher.values.plan import Finding, Plan
from launcher.values.public_result import Number
from launcher.values.record import Parent


class Metric(Shape):
    """One value of one metric; also of `launch metrics`. `step` is null where the log gave none."""

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
    """A line that the training printed; also of `launch logs`. Of a very long one, all pieces but the last `continues`."""

    kind: Literal["log"] = "log"
    run: str
    attempt: int
    text: str
    node: str
    continues: bool
    rehearsed: bool


class LaunchLine(Shape):
    """A line about a launch. `rehearsed`: a card's plan is tried on a CPU."""

    rehearsed: bool


class PlanLine(LaunchLine):
    """What will run."""

    kind: Literal["plan"] = "plan"
    plan: Plan
    digest: str


class CargoLine(LaunchLine, CargoShown):
    """What travels."""

    kind: Literal["cargo"] = "cargo"


class StageLine(LaunchLine):
    """A stage that is done."""

    kind: Literal["stage"] = "stage"
    name: str
    seconds: float
    text: str | None


class ProgressLine(LaunchLine):
    """A stage that is under way. The figures are null but for bytes that move."""

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
    """What the gate has found."""

    kind: Literal["finding"] = "finding"


class StartedLine(LaunchLine):
    """The run that goes on without this client; `job_id` is that of its job in Slurm, null elsewhere."""

    kind: Literal["started"] = "started"
    run: str
    job_id: str | None


class ParentLine(LaunchLine):
    """The run that this one continues."""

    kind: Literal["parent"] = "parent"
    run: str
    parent: Parent


class LinkLine(LaunchLine):
    """The link to the host is `lost`, or `back`; the other keys are null then."""

    kind: Literal["link"] = "link"
    state: Literal["lost", "back"]
    host: str | None = None
    tries: int | None = None
    wait_s: float | None = None
    why: str | None = None


class HomeLine(LaunchLine):
    """Files of a run that are here now, with their bytes."""

    kind: Literal["home"] = "home"
    run: str
    files: dict[str, int]


class EndLine(LaunchLine):
    """The end of a run, and what it left here. `rent_cents` is what its rented machines have cost at most, in cents."""

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
    """An event of the run that is no metric, unchanged: `begin`, `state`, `checkpoint`, `evidence`, `host` and others."""

    run: str
    attempt: int | None
    rank: int
    step: int | None
    time: float
    values: JsonObject
    source: str | None
