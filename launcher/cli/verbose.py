"""-v: the launcher's log messages, on standard error."""

from __future__ import annotations

import logging

from launcher.cli.output.say import complain


class _Notes(logging.Handler):
    """Prints the log messages of the launcher's modules."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(f"  - {record.getMessage()}")


def turn_on() -> None:
    """Print the messages that the launcher's modules log, such as each request to a host and its duration."""
    log = logging.getLogger("launcher")
    log.setLevel(logging.DEBUG)
    log.addHandler(_Notes())
    log.propagate = False
