"""The definition of a batch: many launches in one file."""

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
    """Return a list as a tuple. A single host may be written as text."""
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
    """The launch options of one run of a batch. None leaves an option to the batch.

    Each key is the option of that name. `settings` are the values of `--set`, by key. `host` lists the
    allowed hosts; the first free one is used.
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
    """The rules of a whole batch.

    At most `max_parallel` runs exist at a time, over all hosts. After `max_failures` failed runs no new one
    starts. `max_cost` is in dollars, for all rented machines. `best` is a metric and its direction, e.g.
    `loss:min`. `artifacts`: the runs whose files are downloaded.
    """

    max_parallel: Count | None = None
    max_failures: Count | None = None
    max_cost: Annotated[float, Field(gt=0)] | None = None
    best: Annotated[str, AfterValidator(_checked_best)] | None = None
    artifacts: Artifacts = "all"


class BatchFile(BatchRun, Rules):
    """A batch as the user writes it: the common options, the runs, and a matrix that multiplies them.

    `name` is the batch's name. A matrix key is a key of `--set`, or `host`, `profile`, `precision` or
    `gpus`, or a placeholder `{KEY}` of the command.
    """

    run: tuple[BatchRun, ...] = ()
    matrix: TomlTable = {}
