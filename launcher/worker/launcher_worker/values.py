"""The values in force for this attempt, read from `attempt.json`; plain defaults outside a run.

A knob is a value that the agent may change to recover from a crash: precision, split, steps, loader workers,
activation checkpointing. Reading a knob from `Knobs` reports to the agent that the script uses it. Reading it
from `Knobs.peek` does not.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import functools
import json
import os
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Set, TypedDict

from .channel import rank, send
from .json_values import digest

STACKS_SIGNAL = 44
"""The agent's signal to a process that has been silent for too long."""
MIN_DESCRIPTOR = 100
"""The lowest descriptor for the file of stacks: a script may use or close lower descriptors."""
SHORT_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Precision:
    """One consistent choice of dtypes, autocast and scaler. Dtypes have torch's names, such as `bfloat16`."""

    mode: str
    device: str  # cpu, cuda or mps; outside a run "auto": the device that torch finds
    base_dtype: str
    trainable_dtype: str
    autocast_dtype: Optional[str]
    scaler: bool
    tf32: bool
    adam_eps: float
    why: str
    capability: Optional[str] = None  # the card's, such as "7.5"; None without a card
    attention: str = "sdpa"  # transformers' attn_implementation
    compile: bool = False
    quantization: Optional[str] = (
        None  # of the base's linear layers, such as "nf4"; base_dtype is then that of the others
    )

    @property
    def compute_dtype(self) -> str:
        """The dtype of matrix products."""
        return self.autocast_dtype or self.base_dtype

    @property
    def fuses_adamw(self) -> bool:
        """Whether AdamW is torch's fused one; the client's `Precision` has the same rule and its reason."""
        return self.device == "cuda" and self.trainable_dtype == "float32" and not self.scaler

    @property
    def rounds_stochastically(self) -> bool:
        """Whether bf16 weights are trained, which an optimizer must round stochastically."""
        return self.mode == "bf16-weights"


@dataclass(frozen=True)
class Split:
    """How a global batch is divided: `ranks * micro_batch * accumulation` examples a step."""

    global_batch: int
    ranks: int
    micro_batch: int
    accumulation: int


@dataclass(frozen=True)
class Peek:
    """The knobs, read without a report to the agent: to print them, or for code that works with any of their values."""

    precision: Precision
    split: Split
    steps: Optional[int]
    loader_workers: int
    activation_checkpointing: bool


class ResumedCheckpoint(TypedDict):
    """The checkpoint from which an attempt resumes."""

    path: str
    step: int


class TrialTask(TypedDict):
    """The task of an attempt of `launch verify`; its first `held` steps leave the weights unchanged."""

    kind: str
    steps: int
    held: int
    folder: str
    is_reference: bool


class Knobs:
    """The values in force for this attempt.

    `precision`, `split`, `steps`, `loader_workers` and `activation_checkpointing` are knobs: reading one
    reports to the agent that the script uses it. The others are plain attributes; folders are absolute paths.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        folders = values["folders"]
        self.run: Optional[str] = values["run"]
        self.attempt: int = values["attempt"]
        self.folder: Optional[int] = values.get("folder")  # the number of the attempt's folder
        self.seed: int = values["seed"]
        self.rehearsed: bool = values.get("rehearsed", False)  # whether a card's plan runs on a CPU
        self.checkpoint: Optional[ResumedCheckpoint] = values.get("checkpoint")
        # the path of a checkpoint that the parent run's Trainer saved itself
        self.own_checkpoint: Optional[str] = values.get("own_checkpoint")
        # the rate of one card at the plan's precision
        self.peak_tflops: Optional[float] = values.get("peak_tflops")
        # "end": the guard ends a bad training; "warn": it only reports
        self.guard: str = values.get("guard", "end")
        self.trial: Optional[TrialTask] = values.get("trial")  # a trial of `launch verify`; see trials/
        self.method: str = values["method"]  # lora, qlora or full
        # whether the model is to be divided among the ranks (FSDP2), because it fits no single card
        self.sharding: bool = values.get("sharding", False)
        self.model: Optional[str] = values["model"]
        self.teacher: Optional[str] = values.get("teacher")  # the teacher of a distillation
        self.data: Dict[str, str] = dict(values["data"])
        self.settings: Dict[str, Any] = dict(values["settings"])
        self.save_every_steps: Optional[int] = values["save_every_steps"]
        self.save_every_minutes: Optional[float] = values.get("save_every_minutes")
        self.keep_checkpoints: Optional[int] = values.get("keep_checkpoints")  # None keeps all
        self.artifacts: str = folders["artifacts"]
        self.checkpoints: str = folders["checkpoints"]
        self.cache: str = folders["cache"]
        self.peek = Peek(
            precision=Precision(**_known_fields(Precision, values["precision"])),
            split=Split(**_known_fields(Split, values["split"])),
            steps=values["steps"],
            loader_workers=values["loader_workers"],
            activation_checkpointing=values.get("activation_checkpointing", False),
        )
        self.precision_key = digest({k: v for k, v in values["precision"].items() if k != "why"})
        self._consumed: Set[str] = set()
        self._held: Set[str] = set()
        self._is_announced = False

    @property
    def trains_adapter(self) -> bool:
        """Whether the base is frozen and an adapter is trained."""
        return self.method != "full"

    @property
    def precision(self) -> Precision:
        """The dtypes, autocast and scaler to use."""
        self.consume("precision")
        return self.peek.precision

    @property
    def split(self) -> Split:
        """The number of examples in a micro-batch, and of micro-batches in a step."""
        self.consume("split")
        return self.peek.split

    @property
    def steps(self) -> Optional[int]:
        """The number of steps after which the training ends; None if the script decides."""
        self.consume("steps")
        return self.peek.steps

    @property
    def loader_workers(self) -> int:
        """The number of processes that load data."""
        self.consume("loaders")
        return self.peek.loader_workers

    @property
    def activation_checkpointing(self) -> bool:
        """Whether the backward pass recomputes activations, which saves memory. `prepare` sets this up."""
        self.consume("activation_checkpointing")
        return self.peek.activation_checkpointing

    def consume(self, *names: str) -> None:
        """Report to the agent, once each, that the script uses these knobs.

        Names: `precision split steps loaders activation_checkpointing resume`, and `checkpoints`, which means
        that every complete checkpoint is sealed, so the agent may remove incomplete ones.
        """
        new = [name for name in names if name not in self._consumed]
        if new:
            self._consumed.update(new)
            send("consumed", values={"knobs": new})
        if "precision" in new:
            self.announce()

    def hold(self, name: str) -> None:
        """Report that the script sets this knob itself, at least in part, so the agent cannot change it."""
        if name not in self._held:
            self._held.add(name)
            send("consumed", values={"knobs": [], "held": [name]})

    def announce(self) -> None:
        """In a run, print the precision in force, once."""
        if not self._is_announced and self.run is not None and rank() == 0:
            print(_describe(self.peek.precision, self.rehearsed), flush=True)
        self._is_announced = True


def knobs() -> Knobs:
    """Return the values in force: those of the attempt, or plain defaults outside a run.

    Raises RuntimeError if the attempt's file cannot be read.
    """
    return _read_knobs(os.environ.get("LAUNCH_ATTEMPT"))


@functools.lru_cache(maxsize=None)
def _read_knobs(folder: Optional[str]) -> Knobs:
    if folder is None:
        return Knobs(_values_outside_a_run())
    _answer_agent()
    file = os.path.join(folder, "attempt.json")
    try:
        return Knobs(json.loads(Path(file).read_text(encoding="utf-8")))
    except KeyError as error:
        raise RuntimeError(f"{file} lacks the field {error}") from error
    except (OSError, ValueError, TypeError) as error:
        raise RuntimeError(f"{file} cannot be read: {error}") from error


def _answer_agent() -> None:
    """Let the agent request the stacks of all threads, as the start-up hook does."""
    # On a platform where this fails, a hang is reported without stacks.
    with contextlib.suppress(KeyError, OSError, RuntimeError, ValueError):
        low = os.open(os.environ["LAUNCH_STACKS"], os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            stacks = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, MIN_DESCRIPTOR)
        finally:
            os.close(low)
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)


def _values_outside_a_run() -> Mapping[str, Any]:
    """Return the values of a script run by hand, in the form of an attempt.json."""
    out = os.path.abspath("out")
    return {
        "run": None,
        "attempt": 1,
        "seed": 0,
        "method": "lora",
        "model": None,
        "teacher": None,
        "data": {},
        "settings": {},
        "steps": None,
        "save_every_steps": None,
        "loader_workers": 0,
        "precision": {
            "mode": "fp32",
            "device": "auto",
            "base_dtype": "float32",
            "trainable_dtype": "float32",
            "autocast_dtype": None,
            "scaler": False,
            "tf32": False,
            "adam_eps": 1e-8,
            "why": "outside a run: fp32 works everywhere",
        },
        "split": {"global_batch": 8, "ranks": 1, "micro_batch": 8, "accumulation": 1},
        "folders": {
            "artifacts": os.path.join(out, "artifacts"),
            "checkpoints": os.path.join(out, "checkpoints"),
            "cache": os.path.expanduser(os.path.join("~", ".cache", "launch")),
        },
    }


def _known_fields(kind: Any, values: Mapping[str, Any]) -> Dict[str, Any]:
    """Pick the fields that `kind` declares. A newer agent may write more fields, an older one fewer."""
    return {
        field.name: values[field.name]
        for field in fields(kind)
        if field.name in values or field.default is MISSING
    }


def _describe(precision: Precision, rehearsed: bool) -> str:
    """Return one readable line: the precision in force, and the reason."""
    base = SHORT_NAMES.get(precision.base_dtype, precision.base_dtype)
    if precision.quantization is not None:
        rest = f" and {base}" if precision.base_dtype != precision.compute_dtype else ""
        base = f"{precision.quantization}{rest}"
    autocast = (
        f"{SHORT_NAMES[precision.autocast_dtype]} autocast" if precision.autocast_dtype else "no autocast"
    )
    trainables = SHORT_NAMES.get(precision.trainable_dtype, precision.trainable_dtype)
    parts = [
        f"{autocast} over {'a' if base[0] == 'b' else 'an'} {base} base",
        f"{trainables} trainables",
        f"scaler {'on' if precision.scaler else 'off'}",
        *(["stochastic rounding"] if precision.rounds_stochastically else []),
    ]
    mode = f"precision {precision.mode}{', rehearsed on the CPU' if rehearsed else ''}"
    return f"{mode}: {', '.join(parts)}   ({precision.why})"
