"""A batch: many launches that are written in one file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from launcher.base.toml import TomlTable
from launcher.values.base import Written
from launcher.values.precision import PrecisionChoice
from launcher.values.profile import NAME

MOST_ITEMS = 10_000
Count = Annotated[int, Field(ge=1)]
Artifacts = Literal["all", "best", "none"]


def _as_list(value: object) -> object:
    """One host may be written as text."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _checked_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise ValueError("expected small letters, digits, and . _ - between, 48 at most")
    return name


def _checked_best(best: str) -> str:
    if not re.fullmatch(r"[^:\s]+:(min|max)", best):
        raise ValueError("expected METRIC:min or METRIC:max, e.g. eval_loss:min")
    return best


Name = Annotated[str, AfterValidator(_checked_name)]
HostNames = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class BatchRun(Written):
    """What one launch of a batch says; each key stands for the option of that name. None where it leaves that to the batch.

    `settings` are the values of `--set`, by their keys. `host`: where the run may go, the first that is free.
    """

    name: Name | None = None
    job: str | None = None
    command: tuple[str, ...] = ()
    host: HostNames = ()
    profile: str | None = None
    precision: PrecisionChoice | None = None
    gpus: str | None = None
    settings: TomlTable = {}
    variables: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


class Rules(Written):
    """What holds for all of a batch.

    `max_parallel` runs go on at a time, on all hosts together. After `max_failures` failed ones nothing more is begun.
    `max_cost` is in dollars, of all that is rented. `best` is a metric and its direction, e.g. `loss:min`.
    `artifacts`: whose files come home.
    """

    max_parallel: Count | None = None
    max_failures: Count | None = None
    max_cost: Annotated[float, Field(gt=0)] | None = None
    best: Annotated[str, AfterValidator(_checked_best)] | None = None
    artifacts: Artifacts = "all"


class BatchFile(BatchRun, Rules):
    """A batch as a person writes it: what holds for all runs, the runs, and a matrix that multiplies them.

    `name` is the batch's. A key of the matrix is one of `--set`, `host`, `profile`, `precision`, or a word of the command: `{KEY}` in it.
    """

    run: tuple[BatchRun, ...] = ()
    matrix: TomlTable = {}
