"""The measurements of `launch verify`'s trials, as a run records them.

A job may have written arbitrary data here.
"""

from __future__ import annotations

from typing import Literal, Protocol

from launcher.values.base import Record

TrialKind = Literal["card", "rung", "batch"]
GOOD = "good"
"""The result of a trial that measured everything it should. Any other result is the class of a failure."""


class Speed(Protocol):
    """The speed of a training's steps; None if unknown."""

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second."""

    @property
    def examples_per_s(self) -> float | None:
        """Examples a second."""


def rate_of(speed: Speed | None) -> float:
    """Return the speed of a training: tokens a second, or examples a second if tokens are not counted; 0 if unknown."""
    return 0.0 if speed is None else speed.tokens_per_s or speed.examples_per_s or 0.0


def rate_words(speed: Speed) -> str:
    """Return the speed of a training with its unit, e.g. `1,568 tokens/s`; empty if it is unknown."""
    rate = rate_of(speed)
    unit = "tokens" if speed.tokens_per_s else "examples"
    return f"{rate_figure(rate)} {unit}/s" if rate else ""


def rate_figure(rate: float) -> str:
    """Return a rate without needless digits: `1,568`, `0.72`."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.3g}"


class Product(Record):
    """The speed of a matrix product in one dtype, or torch's error. TFLOP/s are 10^12 operations a second."""

    forward_tflops: float | None = None
    backward_tflops: float | None = None
    finite: bool | None = None
    error: str | None = None


class CardMeasured(Record):
    """A card's compute measurements.

    `kernels` is the architecture whose code the card runs; None if this torch has no code for the card.
    """

    device: str | None = None
    name: str | None = None
    capability: str | None = None
    memory_gb: float | None = None
    torch: str | None = None
    cuda: str | None = None
    architectures: list[str] = []
    kernels: str | None = None
    products: dict[str, Product] = {}


class JobMeasured(Record):
    """The measurements of a job's steps. A loss that is not finite is a string.

    `cosine` is the smallest cosine of a step's gradient to that of the same step in fp32, over `compared`
    steps. `peak_gb` is the memory of tensors on a card, or of the whole process on a CPU (`memory_of`).
    """

    steps: int | None = None
    micro_batch: int | None = None
    loss_first: float | str | None = None
    loss_last: float | str | None = None
    skipped: int | None = None
    scale: float | None = None
    moved: bool | None = None
    cosine: float | None = None
    compared: int = 0
    step_s: float | None = None
    tokens_per_s: float | None = None
    examples_per_s: float | None = None
    memory_of: Literal["card", "process"] | None = None
    peak_gb: float | None = None
    held_gb: float | None = None


class Trial(Record):
    """The subject of a trial; `rung` counts from 0."""

    trial: TrialKind
    rung: int = 0
    micro_batch: int = 1
    accumulation: int = 1


class TrialBegun(Trial):
    """A trial that has begun, and its number of steps; None for the card's trial."""

    steps: int | None = None


class TrialEnded(Trial):
    """A trial that has ended: its subject, its result and its measurements; `line` and `why` explain a failure."""

    result: str
    measured: dict[str, object] | None = None
    line: str | None = None
    why: str | None = None
