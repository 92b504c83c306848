"""What a probe found on a host: volatile, dated, and never part of a plan."""

from __future__ import annotations

from typing import Any

from launcher.values.base import Record
from launcher.values.model import Model, read_model
from launcher.values.precision import Platform, numbers


class Holder(Record):
    """A process that holds a card, as its driver and the process table tell; what neither tells is None.

    `start` is the process table's own text for when it began, `age_s` its age by the clock of the boot. `state` is the
    table's letter; `means` says what follows from T, D, Z and from a process that is not seen. `ownership` is
    `ours-live`, `ours-leftover` or `stranger`, `run` the id of the run where it is ours.
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

    @property
    def is_stranger(self) -> bool:
        """Whether there is no proof that it is of a run of ours."""
        return not self.ownership.startswith("ours-")

    @property
    def title(self) -> str:
        """Who it is, without what changes by the second, e.g. `pid 50213 (eve, python eval.py)`."""
        who = self.user or (f"uid {self.uid}" if self.uid is not None else "another's")
        words = [who, self.command, f"container {self.container}" if self.container else None]
        return f"pid {self.pid} ({', '.join(filter(None, words))})"


class Gpu(Record):
    """One card as its driver reports it; what the driver does not tell is None.

    `compute_mode` is `default`, `exclusive-process` or `prohibited`; `ecc_errors` counts those since the driver was
    loaded that could not be corrected; `xids` are the driver's latest errors in the kernel's log, where it may be read.
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
        """Whether a process holds the card; one that is dead, and only waits to be collected, does not."""
        return any(holder.state != "Z" for holder in self.holders)


class Interpreter(Record):
    """The interpreter for the job: its path, Python version, and the versions of the packages asked for.

    `has_ensurepip`: it can make an environment with pip in it.
    """

    path: str
    version: str | None = None
    packages: dict[str, str | None] = {}
    has_ensurepip: bool = False
    error: str | None = None


class Python(Record):
    """An interpreter that was found there, the version that it says, and whether it can make an environment with pip."""

    path: str
    version: str
    has_ensurepip: bool = False


class Uv(Record):
    """The program uv, which makes environments too, and brings Pythons."""

    path: str
    version: str | None = None


class FileSystem(Record):
    """What holds the root. `error` says why it did not answer, or why a small file could not be written there.

    `is_shared` is of a network's or a cluster's kind: other machines may see the same files. `quota_free_gb` is None
    where there is no quota, or where `quota` cannot tell; `free_inodes` where the file system counts none.
    """

    kind: str | None = None
    is_shared: bool = False
    is_read_only: bool = False
    is_noexec: bool = False
    free_inodes: int | None = None
    quota_free_gb: float | None = None
    error: str | None = None


class Engine(Record):
    """A container engine: its program and its socket, where they are there, and why this user cannot use it."""

    name: str
    program: str | None = None
    socket: str | None = None
    version: str | None = None
    error: str | None = None


class Facts(Record):
    """One probe: the host, its cards, its room, its engines and its interpreters.

    `pythons` are the interpreters that were looked for beside the job's, with `uv`; None where nobody looked. `model_told` is what
    the `config.json` of the job's model says, where it lies there. `holders_error` says why nothing is known of who holds
    the cards; `nvidia_mps` is whether NVIDIA's MPS daemon runs, which lets one user's processes share an exclusive card.
    `ends_with_logout`: logind ends whatever this user leaves running when the session ends.
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
    holders_error: str | None = None
    nvidia_mps: bool = False
    engines: tuple[Engine, ...] = ()
    interpreter: Interpreter | None = None
    pythons: tuple[Python, ...] | None = None
    uv: Uv | None = None
    ends_with_logout: bool = False
    model_told: dict[str, Any] | None = None

    @property
    def model(self) -> Model | None:
        """What the job's model says of itself, where it lies on that host."""
        return read_model(self.model_told)

    @property
    def for_precision(self) -> Platform:
        """What a precision may hang on there; what is no version is not known."""
        torch = self.interpreter.packages.get("torch") if self.interpreter else None
        versions = {"torch": torch, "macos": self.macos}
        known = {key: value for key, value in versions.items() if numbers(value)}
        return Platform(**known, apple_chip=self.apple_chip, has_cpu_bf16=self.has_cpu_bf16)

    @property
    def has_apple_gpu(self) -> bool:
        """Whether this is a Mac with Apple's own processor, and so its GPU."""
        return self.platform == "darwin" and self.machine == "arm64"

    @property
    def room_gb(self) -> float | None:
        """What may be written below the root, in GB: the disk's free space or the quota's, whichever is less."""
        told = [free for free in (self.free_gb, self.file_system.quota_free_gb) if free is not None]
        return min(told, default=None)

    @property
    def room_title(self) -> str:
        """How much may be written below the root, e.g. `83 GB free`."""
        if self.room_gb is None:
            return "free space unknown"
        has_quota = self.room_gb == self.file_system.quota_free_gb
        return f"{self.room_gb:,.0f} GB free{' by quota' if has_quota else ''}"

    @property
    def cards(self) -> str:
        """The cards by the driver's names, e.g. `2 x NVIDIA L40S, 1 x NVIDIA TITAN RTX`; empty where there is none."""
        names = [gpu.name for gpu in self.gpus]
        return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))

    @property
    def cards_with_held(self) -> str:
        """The cards, and how many of them somebody holds, e.g. `2 x NVIDIA L40S, 1 held`."""
        held = sum(gpu.is_held for gpu in self.gpus)
        return f"{self.cards}, {held} held" if held else self.cards
