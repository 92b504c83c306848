"""What is expected of a toy host, and how `launch probe` shows it."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.backends.base.probing import Probing
from launcher.values.facts import Facts


class ToyProbing(Probing):
    """A toy's answers: it is probed as the machine that it is on."""

    def rows(self, facts: Facts, quota: str | None) -> Iterator[tuple[str, str]]:
        """Yield what is expected of its spooler before what the probe found."""
        yield "spooler", "expected to start a job within a second"
        yield from super().rows(facts, quota)
