"""The record of a run's move to another host."""

from __future__ import annotations

from launcher.values.base import Record
from launcher.values.reported.answers import MovedTo


class MoveRecord(Record):
    """The run that continues elsewhere, its host by this client's name for it, and the id of that host's root.

    `abandoned` is the time since which the old host must be informed at the next contact, null if it was
    reachable. `told` is when it was informed, and `settled` when its run was seen dead and its record named
    the successor. `also` is another successor that was in its record before. `given_up` are earlier
    successors of this client that never began. Times are in seconds since 1970.
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
        """The entry for the old host's record."""
        return MovedTo(run=self.run, host=self.host, root=self.root)

    @property
    def is_open(self) -> bool:
        """Whether the old host, which was not reachable, may still train."""
        return self.abandoned is not None and self.settled is None
