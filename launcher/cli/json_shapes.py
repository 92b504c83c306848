"""What each verb prints with --json, as types: the public part of its results. docs/json-schema.json is made from them.

A part is read from a result by the names of its attributes, so a result is given as it is.

Every object, and every line of a stream, begins with its version and its kind. A kind has the same keys whatever was
found: what is unknown is null. Sizes are in bytes, times in seconds since 1970, durations in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from launcher.planning.ladder import Excluded
from launcher.runs.curves import as_json
from launcher.values.answers import Removed, Swept
from launcher.values.departure import Departure
from launcher.values.facts import Facts
from launcher.values.image import Image
from launcher.values.model import Model
from launcher.values.plan import Finding, Plan, Submission
from launcher.values.precision import Precision
from launcher.values.profile import Profile
from launcher.values.record import Parent, Summary
from launcher.values.trial_record import CardMeasured, JobMeasured, TrialEnded
from launcher.values.used_precision import PrecisionSeen

Number = Annotated[float | Literal["nan", "inf", "-inf"], BeforeValidator(as_json)]
"""A number that is not finite is its name: strict JSON has no such number."""


class Part(BaseModel):
    """A part of an answer. Unknown keys are errors; of a result that is no dict, other attributes are not shown."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True, from_attributes=True
    )


class Shape(Part):
    """What is printed as one object on one line."""

    version: Literal[1] = 1
    kind: str


# lists of runs, and what hosts have


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


class Runs(Shape):
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


class OfferRow(Part):
    """A type of instance: its price, the regions that have one free, and the profile of its card, null if none names it."""

    type: str
    title: str
    card: str
    cards: int
    memory_gb: float | None
    cents_per_hour: int
    regions: list[str]
    vcpus: int
    ram_gb: int
    disk_gb: int
    profile: str | None


class Offers(Shape):
    """`launch offers`: what a host's account can rent just now, the cheapest first."""

    kind: Literal["offers"] = "offers"
    host: str
    offers: list[OfferRow]


class HostRow(Part):
    """A host. Without an answer `facts` is null, and `problem` says why.

    `quota` are the hours of an account of Kaggle's, or the price of what would be rented; `facts` are then expectations.
    """

    host: str
    profile: str | None
    problem: str | None
    facts: Facts | None
    quota: str | None


class RentalRow(Part):
    """A machine that is rented for a run, as the ledger here knows it; `cents` is what it has cost at most.

    `held`: a process here looks after it. `problem` says what somebody should do about it.
    """

    run: str
    type: str
    region: str
    instance: str | None
    state: str
    since: float
    deadline: float
    cents_per_hour: int
    cents: int
    held: bool
    past: bool
    problem: str | None


class HeldRow(Part):
    """A connection that process `pid` holds for the next command: for `left_s` seconds more, if `users` do not use it just now."""

    host: str
    about: str
    left_s: float
    users: int
    pid: int


class Hosts(Shape):
    """`launch hosts`; `aliases` are names of ~/.ssh/config that were not asked.

    `connections` are held for the next command; with `--close` they were, and nothing else is looked at. `rentals` may cost something just now; `unreadable` are files of the ledger that cannot be read, which may hold others.
    """

    kind: Literal["hosts"] = "hosts"
    hosts: list[HostRow]
    aliases: list[str]
    connections: list[HeldRow]
    rentals: list[RentalRow]
    unreadable: list[str]


class Probe(Facts):
    """`launch probe`: the facts of a host, and the profile that its card has.

    Those of an account of Kaggle's are expectations, and `quota` are its hours.
    """

    version: Literal[1] = 1
    kind: Literal["probe"] = "probe"
    host: str
    profile: str | None
    quota: str | None = None


class Profiles(Shape):
    """`launch profile list`."""

    kind: Literal["profiles"] = "profiles"
    profiles: list[Profile]


class ProfileShown(Shape):
    """`launch profile show`: a card, what it can, and its precisions for LoRA in the order in which they are tried."""

    kind: Literal["profile"] = "profile"
    profile: Profile
    can: dict[str, bool]
    ladder: list[Precision]


# before a launch


class StepMemory(Part):
    """The memory of a step with a micro-batch of 1 by its parts, and what a plan leaves to CUDA, in bytes."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    reserve: int


class Ladder(Shape):
    """`launch explain`: the precisions of a job on a card, those that are excluded, and what a launch would say.

    `memory` is that of each rung, empty if the model is not known; `checkpointing`: with activation checkpointing.
    """

    kind: Literal["ladder"] = "ladder"
    profile: str
    method: str
    model: Model | None
    ladder: list[Precision]
    excluded: list[Excluded]
    memory: list[StepMemory]
    checkpointing: bool
    findings: list[Finding]
    inject: bool
    takes: list[str]
    slurm: Submission | None = None


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


class LargestMicroBatch(Part):
    """The largest micro-batch that worked in a rung, and the smallest that ran out of memory."""

    rung: int
    fits: int
    too_large: int | None


class Verified(Shape):
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


class FileSize(Part):
    """A file and its bytes."""

    path: str
    bytes: int


class LeftOutPath(Part):
    """A path that does not travel; `key` is the job's key whose folder it is in, null for the code's."""

    key: str | None
    path: str
    why: str
    bytes: int | None
    at_least: bool


class SourceSize(Part):
    """Where the value of a key is from, and how much of it travels."""

    key: str
    written: str
    kind: str
    files: int
    bytes: int


class CargoShown(Part):
    """What travels. `left_out` ends after 1,000 paths, `left_out_count` counts all; `included` are credentials that a `.launchignore` names."""

    folder: str
    files: int
    bytes: int
    largest: list[FileSize]
    left_out: list[LeftOutPath]
    left_out_count: int
    included: list[LeftOutPath]
    sources: list[SourceSize]


class CargoWithPaths(CargoShown):
    """What travels, with every path of the code folder."""

    paths: list[str]


class ScriptSizes(Part):
    """The bytes of a session's script, as text, and of its parts. `tree` is null if `archived` bytes go into a dataset."""

    total: int
    most: int
    stub: int
    agent: int
    records: int
    tree: int | None
    archived: int


class SessionShown(Part):
    """The first session of a run on Kaggle: what is asked for, for how many hours, and with what script."""

    machine: str
    hours: float
    script: ScriptSizes
    quota: str


class RentalOption(Part):
    """A type of instance that will do: its price, where it is free, for how long it may be rented, and what that costs."""

    type: str
    profile: str
    cards: int
    regions: list[str]
    cents_per_hour: int
    hours: float
    expected_cents: int | None
    why_expected: str | None
    largest_cents: int


class RentalShown(Part):
    """What would be rented, the first one first, and the most that it may cost, whichever it is."""

    options: list[RentalOption]
    largest_cents: int
    confirm_above_cents: int


class Preview(Shape):
    """`launch --dry-run`; `session` and `rental` are null for a host that has none."""

    kind: Literal["preview"] = "preview"
    plan: Plan
    digest: str
    findings: list[Finding]
    cargo: CargoWithPaths
    session: SessionShown | None
    rental: RentalShown | None


class Proposed(Shape):
    """`launch init`: the file that was written, and its defaults. The lines of its first run follow."""

    kind: Literal["init"] = "init"
    path: str
    host: str
    profile: str | None
    runtime: str


class Wheels(Part):
    """The torch that was chosen; see `launch image show`."""

    torch: str
    build: str | None
    url: str | None
    why: str
    notes: list[str]


class ImageShown(Image):
    """`launch image show`: an image, and the torch in it; `wheels` is null for an image of yours."""

    version: Literal[1] = 1
    kind: Literal["image"] = "image"
    profile: str
    wheels: Wheels | None


class ImageRow(Part):
    """An image on a host, and how many containers use it."""

    name: str
    bytes: int
    created: float
    containers: int


class Images(Shape):
    """`launch image list`."""

    kind: Literal["images"] = "images"
    host: str
    images: list[ImageRow]


class NamedSize(Part):
    """A thing and its bytes."""

    name: str
    bytes: int


class Pruned(Shape):
    """`launch image prune`."""

    kind: Literal["pruned"] = "pruned"
    host: str
    dry_run: bool
    bytes: int
    images: list[NamedSize]


# a run


class PrecisionRow(Part):
    """A property of a precision: what ran, and what the card wants."""

    name: str
    ran: str
    wanted: str
    differs: bool


class AttemptPrecisionShown(Part):
    """The precision of an attempt; `source` says whether it was seen, or is the plan's that the script took."""

    attempt: int
    rung: int
    takes_plan: bool
    source: Literal["seen", "plan"] | None
    ran: PrecisionSeen | None
    seen: list[PrecisionSeen]
    state: str
    reason: str | None


class PrecisionShown(Shape):
    """`launch explain RUN`."""

    kind: Literal["precision"] = "precision"
    run: str
    profile: str
    rehearsed: bool
    attempt: int | None
    wanted: Precision
    rows: list[PrecisionRow]
    verdict: str | None
    rung: int | None
    sentence: str
    next: str | None
    attempts: list[AttemptPrecisionShown]


class DiagnosisShown(Shape):
    """`launch diagnose`: the class of a failure, the line that proves it, why it happens, and what to do."""

    kind: Literal["diagnosis"] = "diagnosis"
    name: Annotated[str, Field(serialization_alias="class")]
    line: str | None
    line_number: int | None
    why: str
    remedy: str


class PlotShown(Shape):
    """`launch plot`: the picture."""

    kind: Literal["plot"] = "plot"
    run: str
    path: str


class MetricResultShown(Part):
    """What became of a metric: its last value and its best; `goal` says which way is better, null if its name does not."""

    name: str
    final: Number
    final_step: int | None
    best: Number | None
    best_step: int | None
    goal: Literal["min", "max"] | None


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
    metrics: Annotated[list[MetricResultShown], BeforeValidator(_values)]


class DifferenceShown(Part):
    """A value of which the plans differ, by its key: one for each run, null where the plan has none, or is not here."""

    group: Literal["settings", "plan", "packages"]
    key: str
    values: list[Any]


class TreeDifferenceShown(Part):
    """A tree that differs, `code` or `data/KEY`, and the digest of its contents for each run."""

    tree: str
    digests: list[str | None]


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
    plan: list[DifferenceShown]
    trees: list[TreeDifferenceShown]
    files: list[FileDifferenceShown]
    picture: str | None


class FileRow(Part):
    """A file of a run, and whether it is on this machine."""

    path: str
    size: int
    kind: str
    here: Literal["yes", "older", "no"]


class Files(Shape):
    """`launch ls`; `left_out` are paths that could not be looked at, with the reasons."""

    kind: Literal["files"] = "files"
    run: str
    files: list[FileRow]
    left_out: dict[str, str]


class PulledFile(Part):
    """A file that came home."""

    path: str
    size: int
    sha256: str
    here: str


class StayedFile(Part):
    """A file that stayed on the host."""

    path: str
    size: int


class PulledFiles(Shape):
    """`launch pull`: what came, how many were here, and what stayed; `yours` are changed files that were not replaced."""

    kind: Literal["pulled"] = "pulled"
    run: str
    files: list[PulledFile]
    present: int
    over_limit: list[StayedFile]
    checkpoints: list[StayedFile]
    left_out: dict[str, str]
    yours: list[str]


class CopiedFiles(Shape):
    """`launch cp`."""

    kind: Literal["copied"] = "copied"
    run: str
    path: str
    files: int
    bytes: int
    here: str


class Forwarding(Shape):
    """`launch forward`: the address here that leads to port `to` beside the run."""

    kind: Literal["forward"] = "forward"
    run: str
    address: str
    port: int
    to: int


class Stopped(Shape):
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
    items: list[Removed]
    unreadable: dict[str, str]


class Leftovers(Shape):
    """`launch sweep`."""

    kind: Literal["leftovers"] = "leftovers"
    host: str
    dry_run: bool
    items: list[Swept]


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


# the lines of a run that is followed: `launch --json`, `attach`, `resume`, `rerun`


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


class Line(Shape):
    """A line about a launch. `rehearsed`: a card's plan is tried on a CPU."""

    rehearsed: bool


class PlanLine(Line):
    """What will run."""

    kind: Literal["plan"] = "plan"
    plan: Plan
    digest: str


class CargoLine(Line, CargoShown):
    """What travels."""

    kind: Literal["cargo"] = "cargo"


class StageLine(Line):
    """A stage that is done."""

    kind: Literal["stage"] = "stage"
    name: str
    seconds: float
    text: str | None


class ProgressLine(Line):
    """A stage that is under way. The figures are null but for bytes that move."""

    kind: Literal["progress"] = "progress"
    name: str
    text: str
    done: int | None = None
    total: int | None = None
    bytes_per_s: float | None = None
    eta_s: float | None = None
    file: str | None = None


class NoteLine(Line):
    """A note for people."""

    kind: Literal["note"] = "note"
    text: str


class FindingLine(Line, Finding):
    """What the gate has found."""

    kind: Literal["finding"] = "finding"


class StartedLine(Line):
    """The run that goes on without this client; `job_id` is that of its job in Slurm, null elsewhere."""

    kind: Literal["started"] = "started"
    run: str
    job_id: str | None


class ParentLine(Line):
    """The run that this one continues."""

    kind: Literal["parent"] = "parent"
    run: str
    parent: Parent


class LinkLine(Line):
    """The link to the host is `lost`, or `back`; the other keys are null then."""

    kind: Literal["link"] = "link"
    state: Literal["lost", "back"]
    host: str | None = None
    tries: int | None = None
    wait_s: float | None = None
    why: str | None = None


class HomeLine(Line):
    """Files of a run that are here now, with their bytes."""

    kind: Literal["home"] = "home"
    run: str
    files: dict[str, int]


class EndLine(Line):
    """The end of a run, and what it left here. `rent_cents` is what its rented machines have cost at most, in cents."""

    kind: Literal["end"] = "end"
    run: str
    state: str
    reason: str | None
    evidence: dict[str, Any] | None
    metrics: dict[str, Number]
    home: dict[str, int]
    adapter: str | None
    picture: str | None
    rent_cents: int | None


class EventLine(Line):
    """An event of the run that is no metric, unchanged: `begin`, `state`, `checkpoint`, `evidence`, `host` and others."""

    run: str
    attempt: int | None
    rank: int
    step: int | None
    time: float
    values: dict[str, Any]
    source: str | None


SHAPES: tuple[type[BaseModel], ...] = tuple(
    shape
    for shape in list(vars().values())
    if isinstance(shape, type) and issubclass(shape, BaseModel) and "kind" in shape.model_fields
    if shape is EventLine or not shape.model_fields["kind"].is_required()
)
"""Every kind; the last one has the kind of its event."""


def kind_of(shape: type[BaseModel]) -> str:
    """Return the kind of a shape, "" for events."""
    return str(shape.model_fields["kind"].default) if not shape.model_fields["kind"].is_required() else ""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of everything that --json prints."""
    named, whole = models_json_schema([(shape, "serialization") for shape in SHAPES], by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "launch --json",
        "description": "Any line that `launch … --json` prints is one of these, by its kind.",
        "anyOf": [named[shape, "serialization"] for shape in SHAPES],
        **whole,
    }
