"""A batch: many launches that are written in one file, and how far each of them is."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from launcher.values.base import Written
from launcher.values.profile import Name

MOST_ITEMS = 10_000
Count = Annotated[int, Field(ge=1)]
Artifacts = Literal["all", "best", "none"]
_BEST = r"^[^:\s]+:(min|max)$"


def _as_list(value: object) -> object:
    """One host may be written as text."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


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
    precision: Literal["auto", "bf16", "fp16", "fp16-native", "fp32"] | None = None
    gpus: str | None = None
    settings: dict[str, Any] = {}
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
    best: Annotated[str, Field(pattern=_BEST)] | None = None
    artifacts: Artifacts = "all"


class BatchFile(BatchRun, Rules):
    """A batch as a person writes it: what holds for all runs, the runs, and a matrix that multiplies them.

    `name` is the batch's. A key of the matrix is one of `--set`, `host`, `profile`, `precision`, or a word of the command: `{KEY}` in it.
    """

    run: tuple[BatchRun, ...] = ()
    matrix: dict[str, Any] = {}


class ItemState(StrEnum):
    """How far an item of a batch is. Each is on disk before the act that it names.

    QUEUED waits for a place. RESERVED has a run id and a host. SUBMITTED: the launch may have reached the host.
    CONFIRMED: the run is there. ENDED: nothing more is done for it.
    """

    QUEUED = "queued"
    RESERVED = "reserved"
    SUBMITTED = "submitted"
    CONFIRMED = "confirmed"
    ENDED = "ended"


FOLLOWING: dict[ItemState, tuple[ItemState, ...]] = {
    ItemState.QUEUED: (ItemState.RESERVED, ItemState.ENDED),
    ItemState.RESERVED: (ItemState.SUBMITTED, ItemState.QUEUED, ItemState.ENDED),
    ItemState.SUBMITTED: (ItemState.CONFIRMED, ItemState.QUEUED, ItemState.ENDED),
    ItemState.CONFIRMED: (ItemState.ENDED,),
    ItemState.ENDED: (ItemState.QUEUED,),
}
"""The states that may follow each; one that ended is queued again only when a person asks for that."""


REFUSED, DROPPED = "refused", "dropped"
NEVER_BEGAN = (REFUSED, DROPPED)
"""The outcomes of items that have no run: no host takes it, or a person stopped the batch before its turn."""


class Item(NamedTuple):
    """One item of a batch and how far it is. `request` is its launch as JSON.

    `values` are those of the matrix. `run` is its run's id, from RESERVED on. `outcome` is the state that its run ended in, or
    one of NEVER_BEGAN; `why` says what it waits for, or why it ended so. `tried` are the hosts that refused it.
    """

    number: int
    name: str
    request: str
    hosts: tuple[str, ...]
    values: dict[str, Any]
    state: ItemState
    run: str | None
    host: str | None
    outcome: str | None
    why: str | None
    tried: tuple[str, ...]
    changed: float
