"""`ps`, `attach --all` and `batch` with --json."""

from __future__ import annotations

from typing import Any, Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.copy.move_record import Departure
from launcher.values.plan import Finding
from launcher.values.public_result import Number
from launcher.values.record import Summary


class RunRow(Summary):
    """A run; `problem` is why its host could not be asked, or what it said, and `reached` when it last answered then.

    `goes_on` is where this client has had it go on. `rent_cents` is what its rented machines have cost at most, in cents. `batch` is the
    batch that it is an item of. `folder` holds its copy, null if that is the runs folder of this command.
    """

    host: str
    problem: str | None
    reached: float | None
    goes_on: Departure | None
    rent_cents: int | None
    batch: str | None
    folder: str | None


class RunsShown(Shape):
    """`launch ps`: the newest run first. `foreign` are the runs with a copy here that are not in the index."""

    kind: Literal["runs"] = "runs"
    runs: list[RunRow]
    foreign: list[str]


class Entered(Shape):
    """`launch attach --all`: the runs that are in the index now, and those with a copy here that its host does not have."""

    kind: Literal["entered"] = "entered"
    runs: list[str]
    foreign: list[str]


class BatchItem(Shape):
    """`launch batch`, a line for each change, and `launch batch status`, a line for each item.

    `state` is that of its run where that is known here, `begun` before, else how far it is in the queue. `seen` is when its host was last heard.
    `hours` and `gpu_hours` are of all its runs together, `cost` is in dollars, of what was rented for them. `values` are its values of the matrix.
    """

    kind: Literal["item"] = "item"
    name: str
    run: str | None
    host: str | None
    state: str
    step: int | None
    steps: int | None
    loss: Number | None
    seen: float | None
    why: str | None
    hours: float | None
    gpu_hours: float | None
    cost: float | None
    values: dict[str, Any]


class BatchRow(Shape):
    """`launch batch list`, a line for each batch: how many items are in each state, and the process that works it, null for none."""

    kind: Literal["batch"] = "batch"
    name: str
    items: dict[str, int]
    worker: int | None


class BestRun(Part):
    """The best run of a batch, its value of the metric that decides, and the step where it had that."""

    item: str
    run: str
    metric: str
    value: float
    step: int | None


class BatchEnd(Shape):
    """`launch batch`, the last line unless Ctrl-C left it: how many items are in each state, what all took, the best run, and the paths of what was written.

    `hours` and `gpu_hours` are of all runs together; `cost` is in dollars, null where nothing may be rented.
    """

    kind: Literal["batchend"] = "batchend"
    name: str
    items: dict[str, int]
    hours: float
    gpu_hours: float
    cost: float | None
    best: BestRun | None
    table: str | None
    curves: str | None
    problems: list[str]


class BatchRemoved(Shape):
    """`launch batch rm`: how many runs of it stay, how many keep their code, and the files that were kept of it."""

    kind: Literal["batchremoved"] = "batchremoved"
    name: str
    runs: int
    with_code: int
    kept: list[str]


class BatchPreviewed(Shape):
    """`launch batch --dry-run`, a line for each item and host: the digest of its plan, and what the gate says."""

    kind: Literal["itemplan"] = "itemplan"
    name: str
    host: str
    card: str | None
    precision: str | None
    digest: str | None
    findings: list[Finding]
    problem: str | None
    values: dict[str, Any]
