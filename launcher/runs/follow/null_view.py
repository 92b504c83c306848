"""A view that shows nothing, for runs that a command launches internally."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.runs.follow.view import View

if TYPE_CHECKING:
    from launcher.errors import HostError


class NullView(View):
    """Shows nothing; `losses` counts the lost links."""

    losses = 0

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        """Count the loss."""
        self.losses += 1
