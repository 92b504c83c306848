"""The job's settings that decide its memory: optimizer, adapter rank, checkpointing, teacher.

Settings belong to the job and are passed to its script unchanged. These names are read because scripts
commonly use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from launcher.values.job import Scalar
from launcher.values.model import Model
from launcher.values.plan import Plan
from launcher.values.precision import Dtype

DTYPES: tuple[Dtype, ...] = ("float32", "float16", "bfloat16")
Optimizer = Literal[
    "adamw",
    "adamw-fused",
    "adamw-planned",
    "adamw-rounding",
    "adam-8bit",
    "lion",
    "lion-8bit",
    "adafactor",
    "sgd",
]
"""`adamw-planned` is fused, unfused or, for bf16 weights, `adamw-rounding`, depending on the precision."""

TOKENS = 1024
"""The length of a sample when the job's settings have no `max_length`."""
LORA_RANK = 16
"""The rank of an adapter when the job's settings have no `lora_rank`."""
LORA_RANK_NAMES = ("lora_rank", "lora_r", "r")
CHECKPOINTING_NAMES = ("activation_checkpointing", "gradient_checkpointing")
ESTIMATED_NAMES = (
    *LORA_RANK_NAMES,
    *CHECKPOINTING_NAMES,
    "max_length",
    "optim",
    "optimizer",
    "teacher",
    "teacher_dtype",
)
"""The settings that the memory estimate uses, even if the script ignores them."""


class Workload(NamedTuple):
    """The inputs of the memory estimate besides model, method and precision.

    `tokens` is the length of a sample. `is_checkpointed`: the backward pass recomputes activations. `teacher`
    is the frozen model of a distillation; without `teacher_dtype` it has the student's base dtype. `ranks`
    processes train, each with all weights, or, if the training `is_sharded`, with its share of them.
    """

    tokens: int = TOKENS
    optimizer: Optimizer = "adamw"
    lora_rank: int = LORA_RANK
    is_checkpointed: bool = False
    teacher: Model | None = None
    teacher_dtype: Dtype | None = None
    ranks: int = 1
    is_sharded: bool = False


def read_workload(
    settings: Mapping[str, Scalar],
    teacher: Model | None,
    student: Model | None,
    *,
    has_teacher: bool = False,
    is_checkpointed: bool | None = None,
    ranks: int = 1,
    is_sharded: bool = False,
) -> Workload:
    """Return the workload that settings describe. A teacher of unknown shape is assumed to be like the student.

    `has_teacher`: the job names a teacher; otherwise its settings may name one. `is_checkpointed` is the
    plan's value if the script takes it, else None: then the settings decide.
    """
    has_teacher = has_teacher or (isinstance(settings.get("teacher"), str) and settings["teacher"] != "")
    dtype = next((known for known in DTYPES if known == settings.get("teacher_dtype")), None)
    return Workload(
        tokens=_count(settings, "max_length") or TOKENS,
        optimizer=_optimizer(settings.get("optim", settings.get("optimizer"))),
        lora_rank=next((rank for name in LORA_RANK_NAMES if (rank := _count(settings, name))), LORA_RANK),
        is_checkpointed=set_checkpointing(settings) is True if is_checkpointed is None else is_checkpointed,
        teacher=(teacher or student) if has_teacher else None,
        teacher_dtype=dtype if has_teacher else None,
        ranks=ranks,
        is_sharded=is_sharded,
    )


def workload_of(plan: Plan, settings: Mapping[str, Scalar] | None = None) -> Workload:
    """Return the workload of a plan. `settings`, if given, replace the plan's."""
    return read_workload(
        plan.settings if settings is None else settings,
        plan.teacher_facts,
        plan.model_facts,
        has_teacher=plan.teacher is not None,
        is_checkpointed=plan.checkpointing if plan.hands_out("checkpointing") else None,
        ranks=plan.split.ranks,
        is_sharded=plan.sharding,
    )


def set_checkpointing(settings: Mapping[str, Scalar]) -> bool | None:
    """Return whether settings turn activation checkpointing on or off, under scripts' usual names; None if neither."""
    return next(
        (value for name in CHECKPOINTING_NAMES if isinstance(value := settings.get(name), bool)), None
    )


def _count(settings: Mapping[str, Scalar], name: str) -> int | None:
    value = settings.get(name)
    return value if type(value) is int and value > 0 else None


def _optimizer(written: Scalar | None) -> Optimizer:
    """Classify a name of transformers' `optim`, e.g. `paged_adamw_8bit`; an unknown one counts as AdamW.

    `auto` is the plan's choice.
    """
    name = str(written or "").lower()
    if name == "auto":
        return "adamw-planned"
    if "lion" in name:
        return "lion-8bit" if "8bit" in name else "lion"
    if "8bit" in name:
        return "adam-8bit"
    if "adafactor" in name:
        return "adafactor"
    if name == "sgd":
        return "sgd"
    return "adamw-fused" if name.startswith("adam") and name.endswith("fused") else "adamw"
