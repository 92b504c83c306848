"""Facts: the results of probing a host. They can change at any time and are never part of a plan."""

from __future__ import annotations

from launcher.base.json_file import JsonObject
from launcher.values.base import Record
from launcher.values.model import Model, read_model
from launcher.values.precision import Platform, numbers
from launcher.values.reported.cluster import Cluster


class Holder(Record):
    """A process that holds a card, according to the driver and the process table. `None` is unknown.

    `start` is the start time as the process table writes it, `age_s` the age by the boot clock. `state` is
    the letter in the process table; `means` explains T, D, Z, and a process that is not visible. `ownership`
    is `ours-live`, `ours-leftover`, `handed-over` or `stranger`. `run` is the id of the run that owns the
    process, or that has handed it over to the `receiver`, e.g. `slurmstepd (pid 4242)`.
    """

    pid: int
    uid: int | None = None
    user: str | None = None
    command: str | None = None
    start: str | None = None
    age_s: float | None = None
    memory_mib: float | None = None
    container: str | None = None
    state: str | None = None
    means: str | None = None
    ownership: str = "stranger"
    run: str | None = None
    receiver: str | None = None

    @property
    def is_stranger(self) -> bool:
        """Whether the process does not provably belong to a launcher run, or its run has handed it over."""
        return not self.ownership.startswith("ours-")

    @property
    def title(self) -> str:
        """The pid, owner and command, e.g. `pid 50213 (eve, python eval.py)`, without figures that change every second."""
        owner = self.user or (f"uid {self.uid}" if self.uid is not None else "another user")
        words = [owner, self.command, f"container {self.container}" if self.container else None]
        return f"pid {self.pid} ({', '.join(filter(None, words))})"


class Gpu(Record):
    """A card as its driver reports it. `None` is unknown.

    `compute_mode` is `default`, `exclusive-process` or `prohibited`. `ecc_errors` counts uncorrected errors since the
    driver was loaded. `xids` are the driver's latest errors in the kernel log, if the log is readable.
    """

    index: int
    uuid: str
    name: str
    capability: str | None = None
    memory_mib: float | None = None
    memory_used_mib: float | None = None
    driver: str | None = None
    compute_mode: str | None = None
    mig: bool | None = None
    ecc_errors: int | None = None
    xids: tuple[int, ...] = ()
    holders: tuple[Holder, ...] = ()

    @property
    def is_held(self) -> bool:
        """Whether a process holds the card; zombies do not count."""
        return any(holder.state != "Z" for holder in self.holders)


class Interpreter(Record):
    """The job's interpreter: its path, its Python version, and the versions of the requested packages.

    `has_ensurepip`: it can make an environment with pip.
    """

    path: str
    version: str | None = None
    packages: dict[str, str | None] = {}
    has_ensurepip: bool = False
    error: str | None = None


class Python(Record):
    """Another interpreter on the host, its version, and whether it can make an environment with pip."""

    path: str
    version: str
    has_ensurepip: bool = False


class Uv(Record):
    """The program uv, which makes environments and installs Python versions."""

    path: str
    version: str | None = None


class FileSystem(Record):
    """The file system of the root.

    `error` says why the file system did not answer, or why a test file could not be written. `is_shared`: it
    is a network or cluster file system, so other machines may see the same files. `locks_cross`: file locks
    also apply across machines, judged by the kind of file system and its mount options; `None` if unknown.
    `quota_free_gb` is `None` without a quota, or if `quota` cannot read it. `free_inodes` is `None` if the
    file system does not count inodes.
    """

    kind: str | None = None
    is_shared: bool = False
    locks_cross: bool | None = None
    is_read_only: bool = False
    is_noexec: bool = False
    free_inodes: int | None = None
    quota_free_gb: float | None = None
    error: str | None = None


class Engine(Record):
    """A container engine: its program and socket, if present, and the reason if this user cannot use it."""

    name: str
    program: str | None = None
    socket: str | None = None
    version: str | None = None
    error: str | None = None


class Measured(Record):
    """The measurements of a precision by `launch verify`; None where a measurement was not possible.

    `workload` is that of the plan's `verification`. The speeds and `peak_gb` belong to `micro_batch`. `fits`
    is the largest micro-batch that worked, `too_large` the smallest that did not. `cosine` is the smallest
    cosine of a step's gradient to the fp32 gradient.
    """

    workload: str
    micro_batch: int
    fits: int
    too_large: int | None = None
    cosine: float | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    examples_per_s: float | None = None
    peak_gb: float | None = None


class PrecisionEvidence(Record):
    """The outcome of a precision in an earlier run on this host, with the job's model and the present driver.

    On a cluster, runs with other drivers count too. `card` is a profile's name, `precision` a
    `Precision.digest`. `torch` is `None` if the run ended before it reported the version of torch. `failed`
    is the class of the failure; `None` means that the first steps were good. `measured` comes from
    `launch verify`.
    """

    card: str
    method: str
    job: str
    torch: str | None = None
    precision: str
    failed: str | None = None
    measured: Measured | None = None
    run: str
    time: float


class Facts(Record):
    """The result of one probe: the host, its cards, disk space, container engines and interpreters.

    `pythons` and `uv` can make an environment; `pythons` is `None` if the probe did not search.
    `model_values` is the `config.json` of the job's model, if it is on the host. `precision_evidence` lists
    the outcomes of precisions with that model in earlier runs. `other_gpus` describes GPUs of makers that
    launch cannot plan for. `holders_error` says why the holders of the cards are unknown. `nvidia_mps`:
    NVIDIA's MPS daemon runs, which lets one user's processes share an exclusive card. `ends_with_logout`:
    logind terminates this user's processes at logout. `slurm` is the cluster if the host is a login node and
    the probe asked for it. `has_slurm`: the host has the programs and the configuration of a Slurm login
    node; it is set even if the probe did not ask for the cluster.
    """

    host_id: str
    boot_id: str
    hostname: str
    user: str
    platform: str
    machine: str
    macos: str | None = None
    apple_chip: str | None = None
    has_cpu_bf16: bool = False
    cpus: int
    memory_gb: float | None = None
    free_gb: float | None = None
    root: str
    file_system: FileSystem = FileSystem()
    python: str
    gpus: tuple[Gpu, ...] = ()
    gpu_error: str | None = None
    other_gpus: tuple[str, ...] = ()
    holders_error: str | None = None
    nvidia_mps: bool = False
    engines: tuple[Engine, ...] = ()
    interpreter: Interpreter | None = None
    pythons: tuple[Python, ...] | None = None
    uv: Uv | None = None
    ends_with_logout: bool = False
    model_values: JsonObject | None = None
    precision_evidence: tuple[PrecisionEvidence, ...] = ()
    slurm: Cluster | None = None
    has_slurm: bool = False

    @property
    def model(self) -> Model | None:
        """The job's model, if its `config.json` is on the host."""
        return read_model(self.model_values)

    @property
    def for_precision(self) -> Platform:
        """The software and processor that precisions depend on. A version that is not a number counts as unknown."""
        torch = self.interpreter.packages.get("torch") if self.interpreter else None
        versions = {"torch": torch, "macos": self.macos}
        valid = {key: value for key, value in versions.items() if numbers(value)}
        return Platform(**valid, apple_chip=self.apple_chip, has_cpu_bf16=self.has_cpu_bf16)

    @property
    def has_apple_gpu(self) -> bool:
        """Whether the host is a Mac with an Apple processor, and so has an Apple GPU."""
        return self.platform == "darwin" and self.machine == "arm64"

    @property
    def no_card(self) -> str:
        """A description for a host without an NVIDIA or Apple GPU, e.g. `no GPU`, or `1 x AMD GPU 1002:74a1 (206 GB), not planned for`."""
        names = self.other_gpus
        words = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        return f"{words}, not planned for" if words else "no GPU"

    @property
    def room_gb(self) -> float | None:
        """The space for new files below the root, in GB: the smaller of the disk's and the quota's free space."""
        limits = [free for free in (self.free_gb, self.file_system.quota_free_gb) if free is not None]
        return min(limits, default=None)

    @property
    def room_title(self) -> str:
        """The space for new files below the root in words, e.g. `83 GB free`."""
        if self.room_gb is None:
            return "free space unknown"
        has_quota = self.room_gb == self.file_system.quota_free_gb
        return f"{self.room_gb:,.0f} GB free{' by quota' if has_quota else ''}"

    @property
    def cards(self) -> str:
        """The cards by the driver's names, e.g. `2 x NVIDIA L40S, 1 x NVIDIA TITAN RTX`; empty without cards."""
        names = [gpu.name for gpu in self.gpus]
        return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))

    @property
    def cards_with_held(self) -> str:
        """The cards and the number of held ones, e.g. `2 x NVIDIA L40S, 1 held`."""
        held = sum(gpu.is_held for gpu in self.gpus)
        return f"{self.cards}, {held} held" if held else self.cards
