"""The time of the last answer of a run's host to this client, in words."""

from __future__ import annotations

import time

from launcher.copy.local_copy import LocalCopy


def last_answer(local_copy: LocalCopy, least_s: float = 0.0) -> str | None:
    """Say when a run's host last answered; None if unknown, or less than `least_s` seconds ago."""
    reached = local_copy.reached()
    if reached is None or time.time() - reached < least_s:
        return None
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(reached))
    return f"{local_copy.host().name} last answered on {when}; the local copy is from then"
