"""Batches on Kaggle: each run gets its own machine, one after the other."""

from __future__ import annotations

from launcher.backends.base.upkeep import Upkeep


class KaggleUpkeep(Upkeep):
    """The upkeep of an account."""

    preparing_looks = 1  # a session may wait for long
    is_shared = False

    def wait_reason(self, host: str, unbegun: str | None, *, is_launching: bool) -> str | None:
        """Return that another item is being launched, or has no machine yet."""
        if unbegun is not None and not is_launching:
            return f"waits for {unbegun}, which has no machine of {host} yet"
        return super().wait_reason(host, unbegun, is_launching=is_launching)
