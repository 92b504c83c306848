"""An item of a batch, and its state. Without pydantic, to show a long batch quickly."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from launcher.batch.input.batch_matrix import Point


class ItemState(StrEnum):
    """The state of an item of a batch. Each change is written to disk before the next action.

    QUEUED waits for a place. RESERVED has a run id and a host: the launch may have reached it. CONFIRMED: the
    run is on the host. ENDED: nothing more is done for it.
    """

    QUEUED = "queued"
    RESERVED = "reserved"
    CONFIRMED = "confirmed"
    ENDED = "ended"

    @classmethod
    def _missing_(cls, value: object) -> ItemState | None:
        return cls.RESERVED if value == ONCE_RESERVED else None


ONCE_RESERVED = "submitted"
"""An older state, for items whose launch had begun. Queues written before 2026-11-29 have it; read as RESERVED."""
FOLLOWING: dict[ItemState, tuple[ItemState, ...]] = {
    ItemState.QUEUED: (ItemState.RESERVED, ItemState.ENDED),
    ItemState.RESERVED: (ItemState.CONFIRMED, ItemState.QUEUED, ItemState.ENDED),
    ItemState.CONFIRMED: (ItemState.ENDED,),
    ItemState.ENDED: (ItemState.QUEUED,),
}
"""The states that may follow each state. An ended item is queued again only at the user's request."""


ON_THE_WAY = (ItemState.RESERVED, ItemState.CONFIRMED)
"""The states of items whose run is being launched or followed."""
UNENDED = (ItemState.QUEUED, *ON_THE_WAY)


REFUSED, DROPPED = "refused", "dropped"
NEVER_BEGAN = (REFUSED, DROPPED)
"""The outcomes of items without a run: refused by all hosts, or dropped when the user stopped the batch."""


class Item(NamedTuple):
    """One item of a batch and its state. `request` is its launch as JSON.

    `values` are its matrix values. `run` is its run's id, from RESERVED on. `outcome` is the final state of
    its run, or one of NEVER_BEGAN; `why` is the reason why it waits or ended. `tried` are the hosts that
    refused it.
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
