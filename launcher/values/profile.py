"""Profiles of cards. A card's abilities are derived from its capability; a profile cannot claim them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from launcher.values.base import StrictModel
from launcher.values.precision import AMPERE, VOLTA, Capability, numbers

NAME = r"^[a-z0-9][a-z0-9_.-]{0,47}$"
Name = Annotated[str, Field(pattern=NAME)]
"""A name that is safe in a path, a command and a label."""
MIN_SHARE = 0.9
"""The smallest share of a card's nominal memory that its driver reports: ECC takes a sixteenth of GDDR memory."""
DERIVED = "(derived)"
"""The end of the title of a profile that was made from a probe and is in no file."""


class Peak(StrictModel):
    """Published dense peak rates in TFLOP/s, and the memory's bandwidth in GB/s."""

    fp32: float | None = None
    """TFLOP/s in fp32."""
    tf32: float | None = None
    """TFLOP/s in tf32."""
    fp16: float | None = None
    """TFLOP/s in fp16."""
    bf16: float | None = None
    """TFLOP/s in bf16."""
    bandwidth_gb_s: float | None = None
    """The memory's bandwidth in GB/s."""
    source: str
    """The document that states these rates."""


class Profile(StrictModel):
    """A card: capability, memory, peak rates, and the names under which a probe may report it.

    In a plan made from a probe, `memory_mib` is that of the smallest card on the host.
    """

    name: Name
    """The file's name without `.toml`."""
    title: str
    """The card's name and memory, for people."""
    kind: Literal["cuda", "mps", "cpu"]
    """The torch device."""
    capability: Capability | None = None
    """The compute capability, such as `"8.6"`: for `cuda`, and only there."""
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    """The size in the card's name, in GB; `cuda` needs it."""
    memory_mib: Annotated[float | None, Field(gt=0, exclude_if=lambda value: value is None)] = None
    """The total in MiB that the driver reports, for the smallest card of the name."""
    unified: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """The card uses its host's memory, and the driver reports none."""
    count: Annotated[int, Field(ge=1)] = 1
    """The number of these cards that a run uses on one host; memory and rates are per card."""
    probe_names: tuple[str, ...] = ()
    """The names that `nvidia-smi` prints for the card."""
    peak: Peak | None = None
    """Published dense peak rates."""

    @model_validator(mode="after")
    def _capability_belongs_to_cuda(self) -> Profile:
        if (self.kind == "cuda") != (self.capability is not None):
            raise ValueError("capability is given for kind 'cuda', and only there")
        if self.kind == "cuda" and self.memory_gb is None:
            raise ValueError("memory_gb is needed for kind 'cuda'")
        if self.kind != "cuda" and self.count != 1:
            raise ValueError("count is for kind 'cuda': another kind has one")
        return self

    def of_cards(self, count: int) -> Profile:
        """Return the profile of `count` of these cards on one host, e.g. `2 x T4 16 GB`."""
        title = self.title.removeprefix(f"{self.count} x ")
        title = title if count == 1 else f"{count} x {title}"
        return Profile.model_validate({**self.model_dump(), "count": count, "title": title})

    @property
    def is_derived(self) -> bool:
        """Whether the profile was made from a probe, for a card that no profile names."""
        return self.title.endswith(DERIVED)

    @property
    def memory_bytes(self) -> int | None:
        """The memory of one card in bytes: the driver's figure if known, else the nominal size; None if unknown."""
        if self.memory_mib is not None:
            return int(self.memory_mib * 2**20)
        return None if self.memory_gb is None else int(self.memory_gb * 1e9)

    @property
    def compute(self) -> tuple[int, int] | None:
        """The compute capability as numbers, e.g. (7, 5); None for devices without CUDA."""
        if self.capability is None:
            return None
        major, minor = numbers(self.capability)
        return major, minor

    @property
    def has_bf16(self) -> bool:
        """Whether the card computes bf16 in hardware: capability 8.0 and up.

        Never use `torch.cuda.is_bf16_supported()`, which counts emulation and returns True on Turing and
        Pascal.
        """
        return self.compute is not None and self.compute >= AMPERE

    @property
    def has_tf32(self) -> bool:
        """Whether fp32 products may run on tensor cores as tf32: capability 8.0 and up."""
        return self.compute is not None and self.compute >= AMPERE

    @property
    def has_fp16_tensor_cores(self) -> bool:
        """Whether fp16 products run on tensor cores: capability 7.0 and up."""
        return self.compute is not None and self.compute >= VOLTA

    @property
    def has_triton(self) -> bool:
        """Whether torch.compile's GPU back end works: Triton needs capability 7.0."""
        return self.compute is not None and self.compute >= VOLTA

    def is_reported_as(self, name: str, memory_mib: float | None) -> bool:
        """Return whether a probe with this name and memory (MiB, None if unknown) reports this card.

        Cards of one name differ in memory (A100 40 and 80 GB); drivers report up to 7 % less than the nominal
        size.
        """
        if name not in self.probe_names:
            return False
        limits = self.memory_limits_mib
        return memory_mib is None or limits is None or limits[0] <= memory_mib <= limits[1]

    @property
    def memory_limits_mib(self) -> tuple[float, float] | None:
        """The smallest and the largest memory that a driver reports for this card, in MiB; None without dedicated memory.

        The limits distinguish an RTX 3080 of 10 GB from one of 12 GB.
        """
        if self.memory_gb is None or self.unified:
            return None
        return MIN_SHARE * 1024 * self.memory_gb, 1.05 * 1024 * self.memory_gb
