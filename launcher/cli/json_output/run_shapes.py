"""`--json` output of `ps`, `attach --all` and `batch`."""

from __future__ import annotations

from typing import Any, Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.copy.move_records import MoveRecord
from launcher.values.plan import Finding
from launcher.values.public_result import Number
from launcher.values.record import Summary


class RunRow(Summary):
    """A run. If its host does not answer, or answers with an error, `problem` is the reason and `reached` the last answer's time.

    `goes_on` is its successor on another host, if this client moved it. `rent_cents` is the maximum cost of its rented
    machines, in cents. `batch` is the batch of which it is an item. `folder` is the runs folder with its local copy; null
    for this command's runs folder.
    """

    host: str
    problem: str | None
    reached: float | None
    goes_on: MoveRecord | None
    rent_cents: int | None
    batch: str | None
    folder: str | None


class RunsShown(Shape):
    """`launch ps`: the newest run first. `foreign` are runs with a local copy that are missing from the index."""

    kind: Literal["runs"] = "runs"
    runs: list[RunRow]
    foreign: list[str]


class Entered(Shape):
    """`launch attach --all`: the runs now in the index, and those with a local copy that the host does not have."""

    kind: Literal["entered"] = "entered"
    runs: list[str]
    foreign: list[str]


class BatchItem(Shape):
    """`launch batch`, a line for each change, and `launch batch status`, a line for each item.

    `state` is the state of the item's run if known here, `begun` if it is not known yet, and the item's state in the queue
    if it has no run. `seen` is the time of its host's last answer. `hours` and `gpu_hours` are totals over its runs; `cost`
    is the cost of the machines rented for them, in dollars. `values` are its values of the matrix.
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
    """`launch batch list`, a line for each batch: the number of items in each state, and its worker process, null for none."""

    kind: Literal["batch"] = "batch"
    name: str
    items: dict[str, int]
    worker: int | None


class BestRun(Part):
    """The best run of a batch, its best value of the metric that decides, and the step of that value."""

    item: str
    run: str
    metric: str
    value: float
    step: int | None


class BatchEnd(Shape):
    """`launch batch`, the last line unless Ctrl-C detaches: counts of items by state, totals, the best run, and written files.

    `hours` and `gpu_hours` are the total of all runs. `cost` is in dollars, null if the batch may not rent.
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
    """`launch batch rm`: `runs` counts the runs of the batch, which stay, and `with_code` those that keep their code.

    `kept` are the files of the batch that stay.
    """

    kind: Literal["batchremoved"] = "batchremoved"
    name: str
    runs: int
    with_code: int
    kept: list[str]


class BatchPreviewed(Shape):
    """`launch batch --dry-run`, a line for each item and host: the digest of its plan, and its findings."""

    kind: Literal["itemplan"] = "itemplan"
    name: str
    host: str
    card: str | None
    precision: str | None
    digest: str | None
    findings: list[Finding]
    problem: str | None
    values: dict[str, Any]
