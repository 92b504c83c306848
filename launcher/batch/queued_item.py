"""An item of a batch, and how far it is. Without pydantic, so that a long batch is shown quickly."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from launcher.batch.batch_matrix import Point


class ItemState(StrEnum):
    """How far an item of a batch is. Each is on disk before the act that it names.

    QUEUED waits for a place. RESERVED has a run id and a host: the launch may have reached it. CONFIRMED: the run is there.
    ENDED: nothing more is done for it.
    """

    QUEUED = "queued"
    RESERVED = "reserved"
    CONFIRMED = "confirmed"
    ENDED = "ended"

    @classmethod
    def _missing_(cls, value: object) -> ItemState | None:
        return cls.RESERVED if value == ONCE_RESERVED else None


ONCE_RESERVED = "submitted"
"""What queues say until 2026-11-29 of an item that is RESERVED, once its launch has begun."""
FOLLOWING: dict[ItemState, tuple[ItemState, ...]] = {
    ItemState.QUEUED: (ItemState.RESERVED, ItemState.ENDED),
    ItemState.RESERVED: (ItemState.CONFIRMED, ItemState.QUEUED, ItemState.ENDED),
    ItemState.CONFIRMED: (ItemState.ENDED,),
    ItemState.ENDED: (ItemState.QUEUED,),
}
"""The states that may follow each; one that ended is queued again only when a person asks for that."""


ON_THE_WAY = (ItemState.RESERVED, ItemState.CONFIRMED)
"""The states of items whose run is being launched, or followed."""
UNENDED = (ItemState.QUEUED, *ON_THE_WAY)


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
    values: Point
    state: ItemState
    run: str | None
    host: str | None
    outcome: str | None
    why: str | None
    tried: tuple[str, ...]
    changed: float
