"""What is on record of the session that a run has in a cloud service: its segments are such sessions, one after the other."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from launcher.values.base import Record

SegmentStatus = Literal[
    "unsettled", "waiting", "sent", "queued", "running", "ended", "over", "home", "gone", "deleted"
]
"""`unsettled`: its push may have been accepted, or not. `waiting`: the service had no room, and it is pushed again. `ended`:
the service says so, and what it has recorded is on its way here. `over`: that is here, its other files are not. `home`: they
are too. `gone`: they are lost. `deleted`: they are lost, as another client or a person has deleted it."""
_OVER = ("over", "home", "gone", "deleted")


class SegmentRecord(Record):
    """The latest segment of a run, as it lies in the run's `control/service.json`, where the run's LivenessProbe reads it.

    `ref` names it to the service, `words` say what the service said of it. Times are in seconds since 1970: `time` is when
    the service was last asked, `began` when the segment was first seen to run, by the service's clock. It may run for `session_s`, in seconds.

    `refused` are paths that it has left and that cannot be here, each with the reason. `other_client`: whether another client
    of the account has pushed this latest segment, or an earlier one only; that one may need the last one to learn of its end.
    `source` is an earlier segment whose outputs the next one needs. `pushed` are all segments that this client has pushed and
    that may still exist, `lost` those whose push never arrived: should one appear later, it is deleted. `retry_at` is when a
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
        """Read what versions before 2026-11-29 wrote: four flags beside a status that ended with `over` or `deleted`."""
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
        """Whether the service may still run it, or will."""
        return self.status not in _OVER

    @property
    def are_files_lost(self) -> bool:
        """Whether what it has left and is not here is nowhere."""
        return self.status in ("gone", "deleted")
