"""The records of a run in JSON: its plan, its preparation, and each attempt with its state and heartbeat.

Any key may be missing or null, which means the same: older versions wrote fewer keys. A torn or invalid
record is read as empty. `record_shape.py` checks the records in folders to which a job may write.

These types serve readers and mypy only: modules import them under TYPE_CHECKING, since creating them takes 3
ms.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, TypedDict, Union

from .engine_record import EngineRecord
from .strict_json import JsonObject


class RentalEndRecord(TypedDict, total=False):
    """The end of a rental: `until` is a wall-clock time, `uptime` the machine's uptime at that time.

    `uptime` is valid only during the boot with the id `boot`.
    """

    until: float
    uptime: float
    boot: str


class RecordedRuntime(TypedDict, total=False):
    """How a run is executed: in a container with an `engine`, else with an `interpreter`; on which cards.

    `gpus` are its cards, `any_of` those it may move to. `paths` maps a `host:` source, as the plan writes it,
    to its absolute path. The last three keys describe the rental.
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
    """The source of a model or data: a `name` of the hub, a path of the `host`, or uploaded `local` files."""

    kind: str
    value: str


class SplitRecord(TypedDict, total=False):
    """The division of the global batch, which is the product of the first three."""

    ranks: int
    micro_batch: int
    accumulation: int
    global_batch: int


class PrecisionRecord(TypedDict, total=False):
    """A rung of the precision ladder: the keys that the agent reads."""

    mode: str
    tf32: bool
    base_dtype: Optional[str]
    autocast_dtype: Optional[str]


class ProfileRecord(TypedDict, total=False):
    """A card; `peak` is its rate in TFLOPS for each kind of number."""

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
    dockerfile: Optional[str]


class VerificationRecord(TypedDict):
    """The parameters of a rung's trials.

    `steps` is their number of steps, `held` the number of first steps that leave the weights unchanged,
    `workload` a digest.
    """

    steps: int
    held: int
    workload: str


class RankUseRecord(TypedDict, total=False):
    """Whether a script takes its rank from its variables."""

    kind: str


class SlurmRecord(TypedDict, total=False):
    """The request to Slurm: flags of `sbatch`, modules, and each node's possible cards.

    `container` is the command that starts the image. `after` are the runs to wait for, as `RUN:ok` or `RUN:any`.
    """

    flags: List[str]
    after: List[str]
    time_s: Optional[float]
    modules: List[str]
    container: Optional[List[str]]
    cards: List[JsonObject]


class CommitRecord(TypedDict):
    """The git commit of the code that was sent."""

    id: str
    dirty: bool


class PlanRecord(TypedDict, total=False):
    """The client's plan: the keys that the agent reads."""

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
    sharding: bool
    model: SourceRecord
    teacher: SourceRecord
    data: Dict[str, SourceRecord]
    settings: JsonObject
    variables: Dict[str, str]
    secrets: List[str]
    outputs: List[str]
    writable: List[str]
    environment: SoftwareRecord
    host_environment: Optional[str]
    image: SoftwareRecord
    slurm: SlurmRecord
    verification: VerificationRecord
    on_end: List[str]
    commit: CommitRecord
    checkpointing: bool
    loader_workers: int
    save_every_steps: int
    save_every_minutes: float
    keep_checkpoints: int
    stop_grace_s: float
    hang_minutes: float
    time_limit_minutes: float


class ChangesRecord(TypedDict, total=False):
    """The plan's values that an attempt changes. A trial sets the first three, and its kind as `trial`."""

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
"""The changes of an attempt after a failure: see `Remedy` in diagnosis/remedy.py."""


class AgentProcessRecord(TypedDict, total=False):
    """The process of an agent."""

    pid: int
    start: str


class ParentRecord(TypedDict, total=False):
    """The checkpoint of another run from which a run starts.

    It is a name in the run's checkpoints, or for a script's own checkpoint the path below its code.
    `is_trainers`: transformers' Trainer saved it, so the start-up hook passes it to the Trainer.
    """

    run: str
    checkpoint: str
    step: int
    is_trainers: bool


class AgentEndRecord(TypedDict, total=False):
    """An agent's end: its exit status or signal, the processes ended after it, and the end of its output."""

    exit: Optional[int]
    signal: Optional[int]
    oom_kills: Optional[int]
    ended: object
    said: str


class PreviousRecord(TypedDict, total=False):
    """How the previous folder ended.

    The record has its number and state, the processes that were ended, and the report of its keeper or
    engine.
    """

    folder: int
    state: Optional[str]
    reason: Optional[str]
    step: Optional[int]
    ended: Sequence[Mapping[str, object]]
    evidence: Optional[JsonObject]
    keeper: AgentEndRecord
    container: Union[AgentEndRecord, str]


class EventRecord(TypedDict, total=False):
    """A line of `events.jsonl`. A worker's event may hold anything: check each value before use."""

    version: int
    kind: str
    attempt: int
    rank: int
    step: Optional[int]
    time: float
    source: str
    values: JsonObject


class WorkerTrialRecord(TypedDict):
    """The task of a trial's worker."""

    kind: str
    steps: int
    held: int
    folder: str
    is_reference: bool


class AttemptRecord(TypedDict, total=False):
    """The writer of a folder of a run, and why it was written.

    `kind` is `prepare`, `contact`, or `attempt`. An attempt also has its script's settings.
    """

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
    own_checkpoint: Optional[str]
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
    sharding: bool
    model: Optional[str]
    teacher: Optional[str]
    data: Dict[str, Optional[str]]
    settings: Optional[JsonObject]
    folders: Dict[str, str]


class CardRecord(TypedDict):
    """A card that the worker imitates; `name` is the driver's name for it."""

    name: str
    memory_bytes: int
    capability: Optional[str]
    count: int


class AdaptationRecord(TypedDict):
    """Changes by the start-up hook.

    `split` is true if the plan's batch replaces the script's; `halvings` counts how often the batch was
    halved.
    """

    split: bool
    halvings: int


class CheckpointRecord(TypedDict):
    """The checkpoint that an attempt resumes from."""

    step: Optional[int]
    path: str


Loss = Union[float, str]
"""A loss; one that is not finite is a text, e.g. `nan`."""


class StateRecord(TypedDict, total=False):
    """The state of a run by its folder, as in `state.json`.

    `begins_at` is the first step that its attempt has reported. `took_s` is the running time of the run over all
    attempts so far, in seconds. `trial` holds a trial's
    measurements, `sizes` the sizes of the growing files by name. `exit`, `signal` and `oom_kills` describe a
    node's process. `fate` is set only if the state was derived from a liveness verdict, `elsewhere` if another
    place has the run.
    """

    version: int
    state: str
    reason: Optional[str]
    time: float
    attempt: Optional[int]
    began: bool
    step: Optional[int]
    begins_at: Optional[int]
    loss: Optional[Loss]
    consumed: List[str]
    uses_worker: bool
    checkpoint: Optional[int]
    took_s: float
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
    """Why a live run is stuck: the kind of trouble, a clause about it, and its duration in seconds."""

    kind: str
    what: str
    since_s: Optional[float]


class HeartbeatRecord(TypedDict, total=False):
    """The agent's regular heartbeat: its clock, the run's running time, and its training's activity.

    Older versions wrote `ran_s`, the running time of the attempt.
    """

    monotonic_s: float
    ran_s: float
    took_s: float
    grace_s: float
    step: Optional[int]
    loss: Optional[Loss]
    refused: Optional[str]
    silent_s: Optional[float]
    doing: Optional[str]


class EvidenceRecord(TypedDict, total=False):
    """Evidence about a precision with a torch, model, card and driver: a proof, a failure, or measurements.

    `key` identifies the torch, the model, the trained part and the precision. `refuted` is a workload whose
    measurements are invalid.
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
    """An item of precision evidence from an earlier run, as a probe reports it."""

    measured: JsonObject
