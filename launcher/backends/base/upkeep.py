"""What shared code asks of a backend beside its runs: what a batch waits for there, and what is left of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from launcher.values.host import Host


class Upkeep:
    """A machine's answers: its runs share it, and their files stay there."""

    preparing_looks: ClassVar[int] = 10
    """So often a batch may find a run in preparation before that counts as begun."""
    is_shared: ClassVar[bool] = True
    """Whether the runs of a host are on one machine; False if each gets a machine of its own."""
    keeps_files: ClassVar[bool] = True
    """Whether the files of a run that has ended stay at the host; False if all of them are downloaded first."""

    def wait_reason(self, host: str, unbegun: str | None, *, is_launching: bool) -> str | None:
        """Return why a batch cannot launch another item at a host yet; None if it can.

        `unbegun` is an item that was launched there and does not run yet, `is_launching` whether a launch is on its way.
        """
        del unbegun
        return f"waits for another launch on {host}" if is_launching else None

    def others(self, host: Host) -> list[str]:
        """Return in lines what a host without runs of this user holds; empty if its runs are all there is."""
        del host
        return []
