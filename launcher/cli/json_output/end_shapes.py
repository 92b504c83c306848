"""`--json` output of `stop`, `extend`, `recover`, `drill`, `rm`, `gc`, `sweep` and `reconcile`."""

from __future__ import annotations

from typing import Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.cli.json_output.preview_shapes import RentalShown
from launcher.values.reported.answers import CleanupResult, RemovedThing


class StopShown(Shape):
    """`launch stop`. `problem` names the remaining processes, or is the host's refusal. `rent_cents` is as in `launch ps`."""

    kind: Literal["stopped"] = "stopped"
    run: str
    state: str
    reason: str | None
    rehearsed: bool
    problem: str | None
    rent_cents: int | None


class RecoveredRun(Part):
    """One run of `launch recover`. `outcome` is recovered, by-another, nothing-to-do, waiting or failed; `words` has details.

    With --dry-run, `outcome` is `planned` for a run that would be recovered. `rental` has the machines that would be
    rented for it, else null.
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
    """One planned fault of a drill. `unable` is the reason if the host cannot produce it, else null."""

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
    """The result of one fault: `result` is ok, failed or not-run. `failure` and `remedy` are from the run's record.

    `steps_again` counts steps trained twice, `silent_s` the seconds without a step; both are null if the training was not
    interrupted. `left` lists the run's processes, containers and files that were still on the host after its end.
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
    """`launch drill`. `evidence` is the local folder with the ledger of each run."""

    kind: Literal["drill"] = "drill"
    host: str
    runtime: str
    evidence: str
    rows: list[DrillRow]


class RemovedRun(Shape):
    """`launch rm`, an object for each run.

    `bytes` is the space freed on its host, null if nothing was removed there. `files` counts its local files. `here`:
    these files and its local record were removed too.
    """

    kind: Literal["removed"] = "removed"
    run: str
    host: str
    bytes: int | None
    files: int
    here: bool
    problem: str | None


class UnknownRow(Shape):
    """An object in an account that may be launcher's, and that no run on this computer knows.

    `created` is in seconds since 1970. `removal` is the command that removes it.
    """

    kind: str
    name: str
    created: float | None
    removal: str


class GarbageShown(Shape):
    """`launch gc`. `unreadable` are runs that cannot be read, with the reasons: nothing that they may need is removed.

    `unknown` stay: no run on this computer knows them.
    """

    kind: Literal["garbage"] = "garbage"
    host: str
    dry_run: bool
    bytes: int
    items: list[RemovedThing]
    unreadable: dict[str, str]
    unknown: list[UnknownRow]


class Leftovers(Shape):
    """`launch sweep`."""

    kind: Literal["leftovers"] = "leftovers"
    host: str
    dry_run: bool
    items: list[CleanupResult]


class Extended(Shape):
    """`launch extend`: the new limit of a run's rental, and the maximum cost until then."""

    kind: Literal["extended"] = "extended"
    run: str
    deadline: float
    largest_cents: int


class RentedThing(Part):
    """An instance of an account, or a rental in the local ledger. `verdict` is `ended` or its status, `why` the reason.

    `cents` is its maximum cost so far, by the local ledger.
    """

    account: str
    verdict: str
    why: str
    instance: str | None
    run: str | None
    type: str | None
    cents: int | None


class Reconciliation(Shape):
    """`launch reconcile`. `unreadable` are ledger files from which no rental could be read."""

    kind: Literal["reconciled"] = "reconciled"
    dry_run: bool
    things: list[RentedThing]
    unreadable: list[str]
