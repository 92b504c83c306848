"""The plan: the intent of a run with everything resolved. A plan is a value."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, NamedTuple

from pydantic import AliasChoices, ByteSize, Field, model_validator

from launcher.values.base import StrictModel, canonical_json
from launcher.values.job import (
    Count,
    Method,
    Minutes,
    OnEnd,
    Pattern,
    PullLimit,
    Scalar,
    VariableName,
    VariableText,
)
from launcher.values.model import Model
from launcher.values.precision import Capability, Precision
from launcher.values.profile import Name, Profile
from launcher.values.software.environment import Environment
from launcher.values.software.image import Image

IMAGE_RUNTIME = "docker"
"""The runtime whose plans have an image."""


class Split(StrictModel):
    """How the global batch is divided: ranks x micro-batch x accumulation = global batch."""

    global_batch: Count
    ranks: Count = 1
    micro_batch: Count
    accumulation: Count

    @model_validator(mode="after")
    def _keeps_the_global_batch(self) -> Split:
        product = self.ranks * self.micro_batch * self.accumulation
        if product != self.global_batch:
            raise ValueError(
                f"{self.ranks} x {self.micro_batch} x {self.accumulation} = {product}, not {self.global_batch}"
            )
        return self

    @property
    def title(self) -> str:
        """The split as a product, e.g. `micro-batch 4 x 16 = 64`."""
        cards = f"{self.ranks} cards x " if self.ranks > 1 else ""
        return f"{cards}micro-batch {self.micro_batch} x {self.accumulation} = {self.global_batch}"


class Node(StrictModel):
    """One machine of a run, and its number of training processes: one for each card, or one in all.

    The first of a plan's nodes leads the others.
    """

    ranks: Count = 1


class Allocation(StrictModel):
    """The way in which a run gets its cards, and the request: a number of cards of one kind, never particular cards.

    `leased`: reserved on a host, so that its other runs leave them alone. `scheduled` by a cluster's
    scheduler. `rented` with a cloud machine. `given`: the host has the cards, and none is reserved. Example:
    two cards of profile l40s, leased.
    """

    how: Literal["leased", "scheduled", "rented", "given"]
    cards: Annotated[int, Field(ge=0)]
    kind: Name


Checkpointing = Annotated[bool, Field(exclude_if=lambda value: not value)]
"""Whether the backward pass computes activations again. If not, the plan leaves the key out."""
Sharding = Annotated[bool, Field(exclude_if=lambda value: not value)]
"""Whether the model is divided among the ranks. If not, the plan leaves the key out."""


class CardPlan(StrictModel):
    """The values that replace the plan's if the run gets other cards than planned."""

    profile: Profile
    ladder: Annotated[tuple[Precision, ...], Field(min_length=1)]
    split: Split
    checkpointing: Checkpointing = False
    sharding: Sharding = False
    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]
    allocation: Allocation


class SegmentCards(StrictModel):
    """Possible cards: `count` of one of these names, and the limits of their memory in MiB, if any.

    `plan` has the values that replace those in plan.json; None if plan.json was made for these cards.
    """

    names: tuple[str, ...]
    memory_mib: tuple[float, float] | None = None
    count: Annotated[int, Field(ge=1)]
    title: str
    plan: CardPlan | None = None


class Submission(StrictModel):
    """The request to Slurm, and the possible `cards` on each node; empty for a plan without cards.

    `flags` are the flags of sbatch, except those that launcher sets for each run. `time_s` is the limit of
    one start, which is also among the flags. `build`: the environment is made on the login node, or in the
    job. `modules` are loaded in the job before the agent. `container` is the beginning of the command if it
    runs in an image. `after` are the runs that must end before it starts: `RUN:ok` or `RUN:any`. Plans without an
    image or such runs do not have these keys.
    """

    flags: tuple[str, ...]
    time_s: Count | None = None
    nodes: Count = 1
    build: Literal["login", "job"] = "login"
    modules: tuple[str, ...] = ()
    cards: tuple[SegmentCards, ...] = ()
    container: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()
    after: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()


class TorchWheel(StrictModel):
    """A torch build for cards of one capability: its requirement for pip, and the URL of its package index.

    `python` is the Python that it is for, e.g. `3.13`; empty in plans from before 2026-12.
    """

    capability: Capability
    requirement: str
    index: str
    python: str = ""


class Session(StrictModel):
    """The request to a cloud service: the machine by the service's name, and its possible cards.

    `others` are plans for possible cards other than the plan's. `torch` is installed if the service's torch
    has no kernels for the card. Example: Kaggle's NvidiaTeslaT4, which is two T4.
    """

    machine: str
    others: tuple[CardPlan, ...] = ()
    torch: tuple[TorchWheel, ...] = ()


class Source(StrictModel):
    """The source of a model or a file: `local` is sent with the run, `host` is on the host, `name` is resolved by the script."""

    kind: Literal["local", "host", "name"]
    value: str


class Verification(StrictModel):
    """A plan whose attempts are trials of `launch verify`. Each trial has `steps` steps; the first `held` leave the weights unchanged.

    `workload` is the digest of everything that speed and memory depend on, other than card, software and
    precision.
    """

    steps: Count
    held: Count
    workload: str


PlanValue = Literal["base", "checkpointing", "precision", "split"]
"""A value of the plan that a training may take from the plan or decide itself.

A script that takes `base` loads a frozen model in the plan's precision, and does not quantize it.
"""


class RankUse(StrictModel):
    """The way in which a job's script handles ranks, judged by its source; `why` names the evidence.

    `taken`: it takes its rank from the process's variables, and is started once for each card. `started`: it
    is started once, and starts the processes for its cards. `none`: it is one process, which sees all cards.
    """

    kind: Literal["taken", "started", "none"]
    why: str


class ScriptUse(NamedTuple):
    """The values that a job's script takes from a plan, and how it handles ranks; None if unknown."""

    takes: tuple[PlanValue, ...] | None = None
    ranks: RankUse | None = None


UNREAD = ScriptUse()


class Commit(StrictModel):
    """The git commit of the folder that is sent; `dirty` if a tracked file there differs from it."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
    dirty: bool


class Plan(StrictModel):
    """The intent of a run: frozen, canonical, free of ids, times, ports and volatile facts.

    `takes` lists the values that the job's script takes from the plan, judged by its source; None in plans of
    older versions, which did not check this. `rank_use` is how the script handles ranks; plans of older
    versions and commands other than `python` do not have the key. `environment` is made on the host for a
    native run; None if the host's Python, or `host_environment`, has the packages. `packages_from` is the
    source of requirements that the job does not name. `rehearsed`: the card's precision and split are tried
    on a CPU, but not its speed and kernels. `inject`: the start-up hook observes the Python processes of the
    training. `adapt`: the hook passes them the values that the plan `takes`. `verification` is set for a plan
    of `launch verify`, which never trains to the end. `session` is the request for the sessions of a cloud
    service. `slurm` is the request to Slurm; plans for other hosts do not have the key. `commit` is the commit of
    the code, if it has one; plans of older versions do not have the key.
    """

    version: Literal[1] = 1
    job: Name
    host: str
    profile: Profile
    rehearsed: bool = False
    runtime: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")] = "native"
    image: Image | None = None
    environment: Environment | None = None
    host_environment: Annotated[str | None, Field(validation_alias=AliasChoices("host_environment", "env"))]
    command: tuple[str, ...]
    takes: tuple[PlanValue, ...] | None = None
    rank_use: Annotated[RankUse | None, Field(exclude_if=lambda value: value is None)] = None
    requirements: tuple[str, ...]
    packages_from: str | None = None
    model: Source | None
    model_facts: Model | None = None
    teacher: Source | None = None
    teacher_facts: Model | None = None
    data: dict[str, Source]
    method: Method
    steps: Count | None
    seed: int
    save_every_steps: Count | None
    save_every_minutes: Minutes | None = None
    keep_checkpoints: Annotated[int, Field(ge=0)] | None = None
    checkpoints: Literal["host", "pull"] = "host"
    loader_workers: int
    settings: dict[str, Scalar]
    writable: tuple[Pattern, ...] = ()
    variables: dict[VariableName, VariableText] = {}
    secrets: tuple[str, ...] = ()
    ladder: Annotated[tuple[Precision, ...], Field(min_length=1)]
    split: Split
    checkpointing: Checkpointing = False
    sharding: Sharding = False
    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]
    allocation: Allocation
    session: Session | None = None
    slurm: Annotated[Submission | None, Field(exclude_if=lambda value: value is None)] = None
    attempts: Count
    restart: bool
    hang_minutes: Minutes | None = None
    time_limit_minutes: Minutes | None = None
    stop_grace_s: float
    outputs: tuple[Pattern, ...] = ()
    pull_limit: PullLimit = ByteSize(2_000_000_000)
    inject: bool = True
    adapt: bool = False
    guard: Literal["end", "warn"] = "end"
    on_end: OnEnd = ()
    commit: Annotated[Commit | None, Field(exclude_if=lambda value: value is None)] = None
    verification: Verification | None = None

    @model_validator(mode="after")
    def _has_one_source_of_packages(self) -> Plan:
        if (self.runtime == IMAGE_RUNTIME) != (self.image is not None):
            raise ValueError(f"an image is given for runtime '{IMAGE_RUNTIME}', and only there")
        if self.environment is not None and (self.image is not None or self.host_environment is not None):
            raise ValueError(
                "`environment` is for a plan without an `image` and without a `host_environment`"
            )
        if sum(node.ranks for node in self.nodes) != self.split.ranks:
            raise ValueError("the ranks of the nodes must add up to those of the split")
        return self

    @property
    def card_title(self) -> str:
        """The card's title, marked if the card is only rehearsed."""
        return f"{self.profile.title}, rehearsed on a CPU" if self.rehearsed else self.profile.title

    @property
    def script_use(self) -> ScriptUse:
        """The known use of the plan by the job's script."""
        return ScriptUse(self.takes, self.rank_use)

    def hands_out(self, value: PlanValue) -> bool:
        """Return whether the script takes this value; True if unknown."""
        return self.takes is None or value in self.takes

    @property
    def takes_base(self) -> bool:
        """Whether the script is known to load its base model in the plan's precision."""
        return "base" in (self.takes or ())

    def to_file(self) -> bytes:
        """Return the content of a run's plan.json."""
        return f"{self.to_json()}\n".encode()

    def to_json(self) -> str:
        """Return the plan as canonical JSON, one line. The same inputs give the same bytes."""
        return canonical_json(self)

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical JSON, in hex."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


class Finding(StrictModel):
    """A finding of the gate: `refuse` stops the launch, `note` is only shown. `mend` is the suggested fix."""

    level: Literal["refuse", "note"]
    code: str
    message: str
    mend: str = ""


class MachineChoice(NamedTuple):
    """The machine to request, by the backend's name, the profiles that it may have, and notes for the user.

    The plan is made for the first profile.
    """

    machine: str
    profiles: tuple[Profile, ...]
    notes: tuple[Finding, ...] = ()
