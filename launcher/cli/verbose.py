"""-v: what goes on behind the stages, on standard error."""

from __future__ import annotations

import logging

from launcher.cli.output.say import complain


class _Notes(logging.Handler):
    """Shows what the launcher's own modules report."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(f"  - {record.getMessage()}")


def turn_on() -> None:
    """Show what the launcher's modules report to `logging`, such as each request to a host and how long it took."""
    log = logging.getLogger("launcher")
    log.setLevel(logging.DEBUG)
    log.addHandler(_Notes())
    log.propagate = False
