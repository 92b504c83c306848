"""The records of a run: its plan, how it was prepared, each attempt with its state and heartbeat, as JSON has them.

Any key may be missing, or null for the same: older versions wrote fewer, and a record that was torn or cannot be ours is read as empty.
`record_shape.py` checks those in folders to which a job may write.

They are types for a reader and for mypy alone: modules import them under TYPE_CHECKING, since to make them takes 3 ms.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, TypedDict, Union

from .engine_record import EngineRecord
from .strict_json import JsonObject


class RentRecord(TypedDict, total=False):
    """Until when a machine is rented: by its wall clock, and by the clock of a boot."""

    until: float
    uptime: float
    boot: str


class RecordedRuntime(TypedDict, total=False):
    """How a run is run: in a container with an `engine`, else with an `interpreter`; its cards, and those that it may move to.

    `paths` are the absolute ones of `host:` sources, by how the plan writes them. The last three are the rent's.
    """

    kind: str
    interpreter: Optional[str]
    engine: Optional[EngineRecord]
    gpus: Optional[List[str]]
    any_of: Optional[List[str]]
    paths: Dict[str, str]
    rented_until: float
    rented_uptime: float
    rented_boot: str


class SourceRecord(TypedDict):
    """Where a model or data comes from: a `name` of the hub, a path of the `host`, or `local` files that were sent."""

    kind: str
    value: str


class SplitRecord(TypedDict, total=False):
    """How the global batch is divided: the product of the first three."""

    ranks: int
    micro_batch: int
    accumulation: int
    global_batch: int


class PrecisionRecord(TypedDict, total=False):
    """A rung of the ladder, as far as the agent reads it."""

    mode: str
    tf32: bool
    base_dtype: Optional[str]
    autocast_dtype: Optional[str]


class ProfileRecord(TypedDict, total=False):
    """A card; `peak` are its rates in TFLOPS by kind of number."""

    name: str
    title: str
    kind: str
    probe_names: List[str]
    memory_gb: float
    memory_mib: Optional[int]
    capability: Optional[str]
    count: int
    peak: Optional[Dict[str, float]]


class SoftwareRecord(TypedDict, total=False):
    """An environment or an image, by its name, with the version of its torch."""

    name: str
    torch: Optional[str]


class VerificationRecord(TypedDict):
    """What trials of a rung take: their steps, the first steps with weights that are held, the digest of the workload."""

    steps: int
    held: int
    workload: str


class RankUseRecord(TypedDict, total=False):
    """Whether a script takes its rank from the environment."""

    kind: str


class SlurmRecord(TypedDict, total=False):
    """What Slurm is asked for: flags of `sbatch`, modules, the words of an image, the cards that may come on each node."""

    flags: List[str]
    time_s: Optional[float]
    modules: List[str]
    container: Optional[List[str]]
    cards: List[JsonObject]


class PlanRecord(TypedDict, total=False):
    """What the client planned, as far as the agent reads it."""

    job: str
    host: str
    command: List[str]
    steps: int
    seed: int
    attempts: int
    restart: bool
    rehearsed: bool
    adapt: bool
    inject: bool
    takes: List[str]
    guard: str
    profile: ProfileRecord
    ladder: List[PrecisionRecord]
    split: SplitRecord
    rank_use: RankUseRecord
    nodes: List[JsonObject]
    method: str
    model: SourceRecord
    teacher: SourceRecord
    data: Dict[str, SourceRecord]
    settings: JsonObject
    variables: Dict[str, str]
    secrets: List[str]
    outputs: List[str]
    writable: List[str]
    environment: SoftwareRecord
    image: SoftwareRecord
    slurm: SlurmRecord
    verification: VerificationRecord
    on_end: List[str]
    checkpointing: bool
    loader_workers: int
    save_every_steps: int
    save_every_minutes: float
    keep_checkpoints: int
    stop_grace_s: float
    hang_minutes: float
    time_limit_minutes: float


class ChangesRecord(TypedDict, total=False):
    """The values of a plan that an attempt has otherwise. Those of a `trial` are all of its own."""

    rung: int
    micro_batch: int
    accumulation: int
    loader_workers: int
    activation_checkpointing: bool
    keep_checkpoints: int
    trial: str


FailureRecord = TypedDict(
    "FailureRecord",
    {
        "class": str,
        "line": Optional[str],
        "why": Optional[str],
        "mend": str,
        "since": Optional[int],
        "reason": str,
        "others": str,
        "elsewhere": bool,
        "needs": int,
        "step": Optional[int],
        "trained": Optional[bool],
    },
    total=False,
)
"""Why an attempt failed: see `AttemptFailure` in diagnosis/remedy.py."""

RemedyRecord = TypedDict(
    "RemedyRecord",
    {"class": str, "changes": ChangesRecord, "resume_before": Optional[int], "text": str},
    total=False,
)
"""What an attempt changes after a failure: see `Remedy` in diagnosis/remedy.py."""


class AgentProcessRecord(TypedDict, total=False):
    """The process of an agent."""

    pid: int
    start: str


class ParentRecord(TypedDict, total=False):
    """The checkpoint of another run that a run begins with."""

    run: str
    checkpoint: str
    step: int


class AgentEndRecord(TypedDict, total=False):
    """How an agent ended: its exit status or a signal, the processes that were ended after it, and the end of what it said."""

    exit: Optional[int]
    signal: Optional[int]
    oom_kills: Optional[int]
    ended: object
    said: str


class PreviousRecord(TypedDict, total=False):
    """How the folder before was left: its number and state, the processes that were ended, and what its keeper or engine saw."""

    folder: int
    state: Optional[str]
    reason: Optional[str]
    step: Optional[int]
    ended: Sequence[Mapping[str, object]]
    evidence: Optional[JsonObject]
    keeper: AgentEndRecord
    container: Union[AgentEndRecord, str]


class EventRecord(TypedDict, total=False):
    """A line of `events.jsonl`. One that a worker has sent may hold anything: who reads a value checks it."""

    version: int
    kind: str
    attempt: int
    rank: int
    step: Optional[int]
    time: float
    source: str
    values: JsonObject


class WorkerTrialRecord(TypedDict):
    """What the worker of a trial has to do."""

    kind: str
    steps: int
    held: int
    folder: str
    is_reference: bool


class AttemptRecord(TypedDict, total=False):
    """Who wrote a folder of a run, where and why. `kind` is `prepare`, `contact`, or `attempt`, which also has what its script runs with."""

    version: int
    run: str
    kind: str
    folder: int
    attempt: int
    time: float
    by: Optional[str]
    place_id: str
    host_id: str
    boot_id: str
    device: int
    locks: str
    agent_folder: str
    agent: AgentProcessRecord
    job_id: Optional[str]
    runtime: RecordedRuntime
    parent: Optional[ParentRecord]
    previous: Optional[PreviousRecord]
    rung: int
    precision: Optional[PrecisionRecord]
    peak_tflops: Optional[float]
    remedy: Optional[RemedyRecord]
    changes: ChangesRecord
    rehearsed: bool
    card: Optional[CardRecord]
    adapt: Optional[AdaptationRecord]
    trial: Optional[WorkerTrialRecord]
    guard: str
    checkpoint: Optional[CheckpointRecord]
    split: Optional[SplitRecord]
    steps: Optional[int]
    port: int
    seed: Optional[int]
    loader_workers: Optional[int]
    activation_checkpointing: bool
    save_every_steps: Optional[int]
    save_every_minutes: Optional[float]
    keep_checkpoints: Optional[int]
    method: Optional[str]
    model: Optional[str]
    teacher: Optional[str]
    data: Dict[str, Optional[str]]
    settings: Optional[JsonObject]
    folders: Dict[str, str]


class CardRecord(TypedDict):
    """What the worker needs to know of a card that it imitates; its name is the one that the driver reports."""

    name: str
    memory_bytes: int
    capability: Optional[str]
    count: int


class AdaptationRecord(TypedDict):
    """What the start-up hook adapts: `split` if the plan's batch replaces the script's, and how often it was halved."""

    split: bool
    halvings: int


class CheckpointRecord(TypedDict):
    """The checkpoint that an attempt resumes from."""

    step: Optional[int]
    path: str


Loss = Union[float, str]
"""A loss; one that is not finite is a text, as `nan`."""


class StateRecord(TypedDict, total=False):
    """Where a run stands after what its folder tells, as in `state.json`.

    `trial` is what a trial has measured, `sizes` are those of the files that grow, by name. `exit`, `signal` and `oom_kills` are of
    a node. `fate` is there only if the state was derived from a verdict, `elsewhere` if another place has it.
    """

    version: int
    state: str
    reason: Optional[str]
    time: float
    attempt: Optional[int]
    began: bool
    step: Optional[int]
    loss: Optional[Loss]
    consumed: List[str]
    uses_worker: bool
    checkpoint: Optional[int]
    save_s: float
    rehearsed: bool
    failure: Optional[FailureRecord]
    remedy: RemedyRecord
    evidence: JsonObject
    trial: Optional[JsonObject]
    sizes: Dict[str, int]
    exit: Optional[int]
    signal: Optional[int]
    oom_kills: Optional[int]
    fate: str
    elsewhere: bool
    trouble: Optional[TroubleRecord]


class TroubleRecord(TypedDict, total=False):
    """What keeps a live run from going on: its kind, a clause about it, and for how many seconds."""

    kind: str
    what: str
    since_s: Optional[float]


class HeartbeatRecord(TypedDict, total=False):
    """What an agent writes every few seconds: its clock, how long its attempt has run, and what its training does."""

    monotonic_s: float
    ran_s: float
    grace_s: float
    step: Optional[int]
    loss: Optional[Loss]
    refused: Optional[str]
    silent_s: Optional[float]
    doing: Optional[str]


class EvidenceRecord(TypedDict, total=False):
    """What an attempt has shown of a precision with a torch, a model, a card and a driver: a proof, a failure, or what was measured.

    `key` is of the torch, the trained part and the precision; `refuted` is a workload of which what was measured does not hold.
    """

    version: int
    card: Optional[str]
    driver: Optional[str]
    model: Optional[SourceRecord]
    method: Optional[str]
    job: Optional[str]
    key: JsonObject
    proof: Optional[JsonObject]
    failed: Optional[str]
    measured: Optional[JsonObject]
    refuted: Optional[str]
    run: str
    time: float


class _Recalled(TypedDict):
    card: str
    method: str
    job: str
    run: str
    precision: str
    torch: Optional[str]
    failed: Optional[str]
    time: float


class RecalledEvidence(_Recalled, total=False):
    """What a probe tells of the evidence that earlier runs have left of a precision."""

    measured: JsonObject
