"""The settings of `sft` and `distill`: the allowed values and the default of each.

The job's program reads them here, and launch checks them here before anything is sent: so this needs Python alone.
`auto` is the default of any setting. The job's file says what each one means.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

Count = Annotated[int, "a whole number above 0", lambda value: value > 0]
Limit = Annotated[int, "a whole number, 0 or more", lambda value: value >= 0]
Above = Annotated[float, "a number above 0", lambda value: 0 < value < math.inf]
Amount = Annotated[float, "a number, 0 or more", lambda value: 0 <= value < math.inf]
Share = Annotated[float, "a number from 0 to below 1", lambda value: 0 <= value < 1]
Part = Annotated[float, "a number above 0 and below 1", lambda value: 0 < value < 1]
Weight = Annotated[float, "a number from 0 to 1", lambda value: 0 <= value <= 1]
Length = Annotated[int, "a whole number above 1", lambda value: value > 1]
Template = Annotated[
    str,
    """the text of a template, as "$(cat my.jinja)", or a name at the hub: a path is not sent""",
    lambda value: (
        "{" in value or (not value.startswith((".", "/", "~")) and not value.endswith((".jinja", ".j2")))
    ),
]
Scheduler = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"
]  # fmt: skip
KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
PLANNED = ("gradient_checkpointing", "activation_checkpointing")
"""The plan reads these, and the worker's `prepare` turns it on."""


@dataclass(frozen=True)
class Training:
    """The settings of both jobs."""

    learning_rate: Above
    DEMO: ClassVar[dict[str, object]]
    scheduler: Scheduler = "cosine"
    warmup_steps: Amount = 0.03
    weight_decay: Amount = 0.0
    max_grad_norm: Amount = 1.0
    epochs: Above = 1.0
    lora_rank: Count = 16
    lora_alpha: Count = 32
    lora_dropout: Share = 0.0
    max_length: Length = 1024
    logging_steps: Count = 10

    def conflict(self, job: "Job", _data: Mapping[str, object]) -> str | None:
        """Return which settings exclude each other, or the rest of the job; None if none does."""
        if job.steps is not None and self.warmup_steps >= job.steps > 1:
            return f"settings.warmup_steps = {self.warmup_steps:g} is not below the job's {job.steps} steps: the rate would never arrive"
        return None


@dataclass(frozen=True)
class Sft(Training):
    """The settings of `sft`."""

    learning_rate: Above = 2e-4
    optim: str | None = None  # Trainer checks its names
    neftune_noise: Amount = 0.0
    lora_targets: str = "all-linear"
    dora: bool = False
    rslora: bool = False
    long_rows: Literal["drop", "cut", "split"] = "drop"
    loss_on: Literal["auto", "answers", "all"] = "auto"
    packing: bool = False
    system_prompt: str | None = None
    chat_template: Template | None = None
    answer_tags: bool = False
    eval_share: Share = 0.05
    eval_steps: Limit = 0
    eval_limit: Count = 100
    generate: Literal["no", "text", "tags"] = "no"
    max_new_tokens: Count = 64
    patience: Limit = 0
    merge: bool = False
    merge_dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    DEMO: ClassVar = {
        "learning_rate": 5e-3,
        "answer_tags": True,
        "generate": "tags",
    }  # small models want a large rate

    def conflict(self, job: "Job", data: Mapping[str, object]) -> str | None:
        """Return which settings exclude each other, or the rest of the job; None if none does."""
        if (words := super().conflict(job, data)) is not None:
            return words
        is_held_out = bool(self.eval_share) or "eval" in data or data.get("train", "demo") == "demo"
        needing = [name for name in ("eval_steps", "patience") if getattr(self, name)]
        needing += ["generate"] if self.generate != "no" else []
        if needing and not is_held_out:
            return f"settings.{needing[0]} needs held-out rows: settings.eval_share above 0, or data.eval"
        if self.patience and not self.eval_steps:
            return "settings.patience counts evaluations: give settings.eval_steps too"
        if self.patience and job.keep_checkpoints == 0:
            return "settings.patience needs the best checkpoint: keep_checkpoints = 0 keeps none"
        of_adapters = [name for name in ("dora", "rslora", "merge") if getattr(self, name)]
        if of_adapters and job.method == "full":
            return f'settings.{of_adapters[0]} is for an adapter: method = "full" trains none'
        return None


@dataclass(frozen=True)
class Distill(Training):
    """The settings of `distill`."""

    temperature: Above = 2.0
    kl_weight: Weight = 0.9
    teacher_dtype: Literal["base", "float32", "bfloat16", "float16"] = "base"
    learning_rate: Above = 2e-5
    optim: Literal["adamw_torch", "adamw_torch_fused"] | None = None
    eval_steps: Count = 50
    eval_share: Part = 0.05
    eval_limit: Count = 200
    DEMO: ClassVar = {"learning_rate": 5e-3}


class Job(Protocol):
    """The values of a job that its settings depend on. Launch's job has them, and the worker's plan of an attempt."""

    method: str
    model: str | None
    keep_checkpoints: int | None
    steps: int | None


Settings = TypeVar("Settings", Sft, Distill)


def read_settings(
    kind: type[Settings], own: Mapping[str, object], job: Job, data: Mapping[str, object]
) -> Settings:
    """Return the settings in force. SystemExit names one that is unknown, or that cannot be so."""
    usual = {field.name: field.default for field in fields(kind)}
    hints = get_type_hints(kind, include_extras=True)
    own = {name: value for name, value in own.items() if name not in PLANNED}
    unknown = [name for name in own if name not in usual]
    if unknown:
        raise SystemExit(f"[settings] has no {unknown[0]!r}; it has {' '.join(usual)}")
    written = {name: value for name, value in own.items() if value != "auto"}
    for name, value in written.items():
        if (wanted := unlike(hints[name], value)) is not None:
            raise SystemExit(f"settings.{name} = {value!r} is not {wanted}")
    demo = kind.DEMO if job.model in (None, "demo") else {}
    settings = kind(**{**demo, **written})
    if (words := settings.conflict(job, data)) is not None:
        raise SystemExit(words)
    return settings


def unlike(hint: Any, value: object) -> str | None:
    """Return a description of the allowed values if a value is not one of them; None if it is."""
    if type(None) in get_args(hint):
        hint = next(one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is Literal:
        return None if value in get_args(hint) else f"one of {' '.join(get_args(hint))}"
    kind, words, is_allowed = get_args(hint) or (hint, KINDS[hint], lambda _value: True)
    is_kind = isinstance(value, (int, float) if kind is float else kind)
    is_kind = is_kind and isinstance(value, bool) == (kind is bool)
    return None if is_kind and is_allowed(value) else words
