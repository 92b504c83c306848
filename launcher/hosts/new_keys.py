"""What becomes of a host key that no known_hosts file holds: refused, unless a person said otherwise."""

from __future__ import annotations

from collections.abc import Callable


class NewKeys:
    """The answer of this process to unknown host keys. A changed or revoked one is refused whatever it says."""

    def __init__(self) -> None:
        """Refuse."""
        self._tell: Callable[[str], None] | None = None

    @property
    def are_accepted(self) -> bool:
        """Whether a person said to accept them."""
        return self._tell is not None

    def accept(self, tell: Callable[[str], None]) -> None:
        """Accept them from now on; `tell` is called with the fingerprint of each."""
        self._tell = tell

    def tell(self, text: str) -> None:
        """Say what has been accepted."""
        if self._tell is not None:
            self._tell(text)


NEW_KEYS = NewKeys()
"""This process's."""
