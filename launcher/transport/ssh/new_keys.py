"""Whether to accept a host key that no known_hosts file has: only with --accept-new-host-key."""

from __future__ import annotations

from collections.abc import Callable


class NewKeys:
    """This process's decision on unknown host keys. Changed and revoked keys are always refused."""

    def __init__(self) -> None:
        """Refuse unknown keys until `accept` is called."""
        self._report: Callable[[str], None] | None = None

    @property
    def are_accepted(self) -> bool:
        """Whether the user asked to accept them."""
        return self._report is not None

    def accept(self, report: Callable[[str], None]) -> None:
        """Accept unknown keys from now on. `report` is called with a message about each."""
        self._report = report

    def report(self, text: str) -> None:
        """Report an accepted key."""
        if self._report is not None:
            self._report(text)


NEW_KEYS = NewKeys()
"""The decision of this process."""
