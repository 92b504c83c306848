"""What will happen: the intent of a run with everything resolved. A plan is a value."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import Field, model_validator

from launcher.spec.base import Written, canonical_json
from launcher.spec.image import Image
from launcher.spec.job import Count, Scalar
from launcher.spec.profile import Name, Profile

Dtype = Literal["float32", "float16", "bfloat16"]


class Precision(Written):
    """One consistent choice of dtypes, autocast and scaler. One that torch would refuse cannot be built.

    `why` says why it stands at its place in the ladder.
    """

    mode: Literal["fp32", "bf16", "fp16"]
    device: Literal["cuda", "mps", "cpu"]
    base_dtype: Dtype
    trainable_dtype: Dtype = "float32"
    autocast_dtype: Literal["float16", "bfloat16"] | None = None
    scaler: bool = False
    tf32: bool = False
    adam_eps: float = 1e-8
    why: str

    @model_validator(mode="after")
    def _is_consistent(self) -> Precision:
        if self.scaler and self.trainable_dtype != "float32":
            raise ValueError(
                f"a scaler cannot unscale {self.trainable_dtype} gradients: trainables must be float32"
            )
        needs_scaler = self.autocast_dtype == "float16" and self.trainable_dtype == "float32"
        if needs_scaler and not self.scaler:
            raise ValueError("fp16 autocast over float32 trainables underflows without a scaler")
        if self.scaler and self.autocast_dtype != "float16":
            raise ValueError("a scaler is for fp16 autocast only")
        if self.scaler and self.device == "cpu":
            raise ValueError("on a CPU fp16 is silently off: no autocast, no scaler")
        if self.tf32 and self.device != "cuda":
            raise ValueError("tf32 is a CUDA card's mode")
        if self.trainable_dtype == "float16" and self.adam_eps < 1e-7:
            raise ValueError(f"Adam's eps {self.adam_eps} is zero in float16: the update divides by it")
        return self

    @property
    def title(self) -> str:
        """The choice in a few words, as a person would say it."""
        if self.autocast_dtype is None:
            words = [f"{self.mode}{' with tf32' if self.tf32 else ''}"]
        else:
            words = [f"{self.mode} autocast{' + scaler' if self.scaler else ''}"]
        if self.base_dtype != self.trainable_dtype:
            words.append(f"{_SHORT[self.base_dtype]} base, {_SHORT[self.trainable_dtype]} adapters")
        elif self.autocast_dtype is not None:
            words.append(f"{_SHORT[self.base_dtype]} weights")
        return ", ".join(words)


_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class Split(Written):
    """How the global batch falls into micro-batches: ranks x micro x accumulation = global."""

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


class Source(Written):
    """Where a model or a file comes from: `local` travels with the run, `host` lies there, `name` is the script's."""

    kind: Literal["local", "host", "name"]
    value: str


class Plan(Written):
    """The intent of a run: frozen, canonical, free of ids, times, ports and volatile facts."""

    version: Literal[1] = 1
    job: Name
    host: str
    profile: Profile
    runtime: Literal["docker", "native"] = "native"
    image: Image | None = None
    env: str | None
    command: tuple[str, ...]
    requirements: tuple[str, ...]
    model: Source | None
    data: dict[str, Source]
    method: Literal["lora", "full"]
    steps: Count | None
    seed: int
    save_every_steps: Count | None
    loader_workers: int
    settings: dict[str, Scalar]
    secrets: tuple[str, ...] = ()
    ladder: Annotated[tuple[Precision, ...], Field(min_length=1)]
    split: Split
    attempts: Count
    restart: bool
    stop_grace_s: float

    @model_validator(mode="after")
    def _image_belongs_to_docker(self) -> Plan:
        if (self.runtime == "docker") != (self.image is not None):
            raise ValueError("an image is given for runtime 'docker', and only there")
        return self

    def to_json(self) -> str:
        """Write the plan as its canonical JSON, one line. The same inputs give the same bytes."""
        return canonical_json(self)

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical JSON, in hex."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


class Finding(Written):
    """What the gate says of a plan on a host: `refuse` stops a launch, `note` is said aloud. `mend` is what to do."""

    level: Literal["refuse", "note"]
    code: str
    message: str
    mend: str = ""
