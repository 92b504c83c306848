"""The definition of a batch: many launches in one file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from launcher.base.toml import TomlTable
from launcher.values.base import StrictModel
from launcher.values.precision import PrecisionChoice
from launcher.values.profile import NAME

MAX_ITEMS = 10_000
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


def _checked_after(after: str) -> str:
    name, _, condition = after.partition(":")
    if not re.fullmatch(NAME, name) or condition not in ("", "ok", "any"):
        raise ValueError("expected the name of a run of this file, or NAME:any")
    return after


Name = Annotated[str, AfterValidator(_checked_name)]
HostNames = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class BatchRun(StrictModel):
    """The launch options of one run of a batch. An option that is None takes the batch's value."""

    name: Name | None = None
    """The item's name. At the top of the file: the batch's name, by default the file's."""
    job: str | None = None
    """A job's name or file; by default the project's."""
    command: tuple[str, ...] = ()
    """A command instead of a job; `{KEY}` in it is replaced by a value of the matrix."""
    host: HostNames = ()
    """A host, or a list: a run goes to the first host that takes it. By default the project's."""
    profile: str | None = None
    """As `--profile`."""
    precision: PrecisionChoice | None = None
    """As `--precision`."""
    gpus: str | None = None
    """As `--gpus`."""
    settings: TomlTable = {}
    """The changes that `--set` makes: `{ steps = 100, "settings.learning_rate" = 1e-4 }`."""
    variables: dict[str, str] = {}
    """As `-e`."""
    secrets: tuple[str, ...] = ()
    """As `--secret`."""
    packages: tuple[str, ...] = ()
    """As `--with`."""
    after: Annotated[
        tuple[Annotated[str, AfterValidator(_checked_after)], ...], BeforeValidator(_as_list)
    ] = ()
    """On a Slurm cluster: names of runs before this one in the file. It starts if all their items succeed; with
    `NAME:any`, after their end.
    """


class Rules(StrictModel):
    """The rules of a whole batch."""

    max_parallel: Count | None = None
    """The most runs at a time, on all hosts together."""
    max_failures: Count | None = None
    """Nothing more starts after this many failed runs; `--fail-fast` is 1."""
    max_cost: Annotated[float, Field(gt=0)] | None = None
    """The maximum cost of all rented machines of the batch together, in dollars. A batch that may rent needs it."""
    best: Annotated[str, AfterValidator(_checked_best)] | None = None
    """A metric and its direction, e.g. `eval_loss:min`."""
    artifacts: Artifacts = "all"
    """The runs whose files are downloaded; `best` needs the key `best`. The batch's last
    lines give the number of runs whose files stay on hosts.
    """


class BatchFile(BatchRun, Rules):
    """A batch as the user writes it: the common options, the runs, and a matrix that multiplies them.

    A matrix key is a key of `--set`, or `host`, `profile`, `precision` or `gpus`, or a placeholder `{KEY}` of the
    command.
    """

    run: tuple[BatchRun, ...] = ()
    """The runs, each with any of the keys of a run; by default one."""
    matrix: TomlTable = {}
    """For each run, each combination of the matrix's values is an item."""
