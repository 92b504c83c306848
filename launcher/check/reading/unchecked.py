"""The error of a file that cannot be checked."""

from __future__ import annotations

from launcher.check.reading.positions import Region


class UncheckedError(Exception):
    """Raised for a file that cannot be checked: the reason, without its name, and the place in it.

    `is_unreadable`: not even its bytes could be read.
    """

    def __init__(self, why: str, region: Region | None = None, *, is_unreadable: bool = False) -> None:
        super().__init__(why)
        self.why, self.region, self.is_unreadable = why, region or Region.at(1, 1), is_unreadable
