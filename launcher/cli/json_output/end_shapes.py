"""`stop`, `extend`, `recover`, `drill`, `rm`, `gc`, `sweep` and `reconcile` with --json."""

from __future__ import annotations

from typing import Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.cli.json_output.preview_shapes import RentalShown
from launcher.values.reported.answers import RemovedThing, Swept


class StopShown(Shape):
    """`launch stop`; `problem` is what is left, or what the host refused. `rent_cents` is as in `launch ps`."""

    kind: Literal["stopped"] = "stopped"
    run: str
    state: str
    reason: str | None
    rehearsed: bool
    problem: str | None
    rent_cents: int | None


class RecoveredRun(Part):
    """One run of `launch recover`. `outcome` is recovered, by-another, nothing-to-do, waiting or failed; `words` say more.

    With --dry-run it is `planned` where something would be done; `rental` is what would be rented for that, else null.
    """

    run: str
    host: str
    outcome: str
    state: str
    words: str | None
    rental: RentalShown | None


class Recovered(Shape):
    """`launch recover`."""

    kind: Literal["recovered"] = "recovered"
    runs: list[RecoveredRun]


class PlannedFault(Part):
    """One fault of a drill that is to come; `unable` is why it cannot be brought about there."""

    fault: str
    title: str
    expected: str
    seconds: int
    unable: str | None


class DrillPlan(Shape):
    """`launch drill --dry-run`."""

    kind: Literal["faults"] = "faults"
    host: str
    runtime: str
    faults: list[PlannedFault]


class DrillRow(Part):
    """What came of one fault: `result` is ok, failed or not-run. `failure` and `remedy` are what the run has on record.

    `steps_again` are steps that were trained twice, `silent_s` the seconds without a step, null where the training was not
    interrupted; `left` is what the host still had of the run after its end.
    """

    fault: str
    result: str
    run: str | None
    failure: str | None
    remedy: str | None
    steps_again: int | None
    silent_s: float | None
    left: list[str]
    problems: list[str]


class DrillReport(Shape):
    """`launch drill`; `evidence` is the folder here with the ledger of each run."""

    kind: Literal["drill"] = "drill"
    host: str
    runtime: str
    evidence: str
    rows: list[DrillRow]


class RemovedRun(Shape):
    """`launch rm`, an object for each run: the bytes freed on its host (null for none), its files here, and whether they went too."""

    kind: Literal["removed"] = "removed"
    run: str
    host: str
    bytes: int | None
    files: int
    here: bool
    problem: str | None


class GarbageShown(Shape):
    """`launch gc`; `unreadable` are runs whose things stay, with the reasons."""

    kind: Literal["garbage"] = "garbage"
    host: str
    dry_run: bool
    bytes: int
    items: list[RemovedThing]
    unreadable: dict[str, str]


class Leftovers(Shape):
    """`launch sweep`."""

    kind: Literal["leftovers"] = "leftovers"
    host: str
    dry_run: bool
    items: list[Swept]


class Extended(Shape):
    """`launch extend`: until when the machine of a run is rented, and what it may cost by then."""

    kind: Literal["extended"] = "extended"
    run: str
    deadline: float
    largest_cents: int


class RentedThing(Part):
    """An instance of an account or a rental of ours: what was done with it (`ended`), or what it is to us, and why.

    `cents` is what it has cost at most, as far as the ledger here knows.
    """

    account: str
    verdict: str
    why: str
    instance: str | None
    run: str | None
    type: str | None
    cents: int | None


class Reconciliation(Shape):
    """`launch reconcile`; `unreadable` are files of the ledger that no rental could be read from."""

    kind: Literal["reconciled"] = "reconciled"
    dry_run: bool
    things: list[RentedThing]
    unreadable: list[str]
