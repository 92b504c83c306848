"""Where a client has had a run go on."""

from __future__ import annotations

from launcher.values.base import Record
from launcher.values.reported.answers import MovedTo


class Departure(Record):
    """The run that goes on elsewhere, its host by this client's name for it, and the id of that one's root.

    `abandoned` is since when the old host is to hear of it at the next contact, null if it was at hand; `told` is when it
    heard, and `settled` when its run was seen dead and the successor was put on its record. `also` is another successor
    that was on its record before, `given_up` are earlier ones of this client that never began. Times are in seconds since 1970.
    """

    run: str
    host: str
    root: str
    abandoned: float | None = None
    told: float | None = None
    settled: float | None = None
    also: str | None = None
    given_up: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """The last part of the successor's id, enough to name it."""
        return self.run.rpartition("-")[2]

    @property
    def to(self) -> MovedTo:
        """What the old host puts on record."""
        return MovedTo(run=self.run, host=self.host, root=self.root)

    @property
    def is_open(self) -> bool:
        """Whether the old host, which was not at hand, may still train."""
        return self.abandoned is not None and self.settled is None
