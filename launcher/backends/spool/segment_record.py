"""The record of a run's latest segment.

A segment is one session of a cloud service; a run has one after another.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from launcher.values.base import Record

SegmentStatus = Literal[
    "unsettled", "waiting", "sent", "queued", "running", "ended", "over", "home", "gone", "deleted"
]
"""The status of a segment.

`unsettled`: the push may have been accepted or not. `waiting`: the service had no room, and the segment will
be pushed again. `ended`: the service reports its end, and its record is being downloaded. `over`: its record
is downloaded, its other files are not. `home`: all its files are downloaded. `gone`: its other files are lost.
`deleted`: they are lost because another client or a person deleted the segment.
"""
_OVER = ("over", "home", "gone", "deleted")


class SegmentRecord(Record):
    """The latest segment of a run, stored in its `control/service.json`, where its LivenessProbe reads it.

    `ref` is the service's name of the segment, `words` the service's message. Times are in seconds since 1970:
    `time` is the last request to the service, `pushed_at` the push, by this machine's clock, `began` the moment when the segment was first seen running, by
    the service's clock. `session_s` is its time limit in seconds. `is_complete`: its script ran to its end.

    `refused` are output paths that cannot be stored here, each with the reason. `other_client`: another
    client of the account pushed the latest segment, or only an earlier one. Such a client may need the last
    segment to learn of the run's end. `source` is the segment whose outputs the next segment needs.
    `pushed` are all segments that this client pushed and that may still exist. `lost` are those whose push
    never arrived: if one appears later, it is deleted. `retry_at` is the time when a `waiting` segment is
    pushed again, for the `tries`th time. `checkpoint` is the step of the newest downloaded checkpoint.
    `fruitless` is the number of consecutive segments, up to the latest, that brought no new checkpoint.
    """

    version: Literal[1] = 1
    run: str
    segment: Annotated[int, Field(ge=1)]
    ref: str
    status: SegmentStatus
    words: str = ""
    time: float
    pushed_at: float = 0.0
    began: float | None = None
    session_s: float = 0.0
    is_complete: bool = False
    refused: dict[str, str] = {}
    other_client: Literal["earlier", "latest"] | None = None
    source: str | None = None
    pushed: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    retry_at: float | None = None
    tries: int = 0
    checkpoint: int | None = None
    fruitless: int = 0

    @model_validator(mode="before")
    @classmethod
    def _without_flags(cls, values: Any) -> Any:
        """Convert a record from before 2026-11-29: it has flags instead of `other_client` and some statuses."""
        if not isinstance(values, dict) or "is_home" not in values:
            return values
        found = dict(values)
        if found.get("status") == "over" and found["is_home"]:
            found["status"] = "gone" if found.get("are_gone") else "home"
        if found.get("is_adopted") or found.get("is_shared"):
            found["other_client"] = "latest" if found.get("is_adopted") else "earlier"
        return found

    @property
    def is_live(self) -> bool:
        """Whether the service may run the segment, now or later."""
        return self.status not in _OVER

    @property
    def are_files_lost(self) -> bool:
        """Whether the outputs that were not downloaded are lost."""
        return self.status in ("gone", "deleted")
