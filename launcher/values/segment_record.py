"""What is on record of the session that a run has in a cloud service: its segments are such sessions, one after the other."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from launcher.values.base import Record

SegmentStatus = Literal["unsettled", "waiting", "sent", "queued", "running", "ended", "over", "deleted"]
"""`unsettled`: its push may have been accepted, or not. `waiting`: the service had no room, and it is pushed again. `ended`:
the service says so, and what it has recorded is on its way here. `deleted`: by another client, or on the service's page."""


class SegmentRecord(Record):
    """The latest segment of a run, as it lies in the run's `control/service.json`, where the run's Fate reads it.

    `ref` names it to the service, `words` say what the service said of it. Times are in seconds since 1970: `time` is when
    the service was last asked, `began` when the segment was first seen to run, by the service's clock. It may run for `session_s`, in seconds.

    `is_home`: its outputs are in the spool, unless they `are_gone`, or were `refused`: these paths, each with the reason. `is_adopted`: another client has pushed it. `is_shared`: another client has pushed
    a segment of the run, and may need the last one to learn of its end. `source` is an earlier segment whose outputs the next
    one needs. `pushed` are all segments that this client has pushed and that may still exist, `earlier` those of them that
    nothing needs, and `lost` those whose push never arrived: should one appear later, it is deleted. `retry_at` is when a
    `waiting` one is pushed again, for the `tries`th time. `checkpoint` is the step of the newest checkpoint that came home;
    `fruitless` segments in a row have brought none.
    """

    version: Literal[1] = 1
    run: str
    segment: Annotated[int, Field(ge=1)]
    ref: str
    status: SegmentStatus
    words: str = ""
    time: float
    began: float | None = None
    session_s: float = 0.0
    is_home: bool = False
    are_gone: bool = False
    refused: dict[str, str] = {}
    is_adopted: bool = False
    is_shared: bool = False
    source: str | None = None
    pushed: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    retry_at: float | None = None
    tries: int = 0
    checkpoint: int | None = None
    fruitless: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the service may still run it, or will."""
        return self.status not in ("over", "deleted")
