"""The host's last one-line summary of a run, stored for listings, and the time of the host's last answer in words.

The summary is stored in the local copy even if the run's record is not. So an ended run never appears as
running again when its host stops answering.
"""

from __future__ import annotations

import contextlib
import time

from launcher.copy.local_copy import LocalCopy
from launcher.copy.run_files import MAX_JSON
from launcher.values.record import Summary, is_terminal


def last_answer(local_copy: LocalCopy, least_s: float = 0.0) -> str | None:
    """Return a sentence with the time of the host's last answer; None if unknown, or less than `least_s` seconds ago."""
    reached = local_copy.reached()
    if reached is None or time.time() - reached < least_s:
        return None
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(reached))
    return f"{local_copy.host().name} last answered on {when}; the local copy is from then"


LAST_SEEN = ".last-seen.json"


def note(local_copy: LocalCopy, summary: Summary) -> None:
    """Store a host's newest summary of a run. A failed write is ignored."""
    data = summary.model_dump_json().encode()
    with contextlib.suppress(OSError):
        if not local_copy.files.exists(LAST_SEEN) or local_copy.files.read(LAST_SEEN, MAX_JSON) != data:
            with local_copy.files.open(LAST_SEEN, "wb") as file:
                file.write(data)  # a torn file counts as missing


def latest(local_copy: LocalCopy, known: Summary) -> Summary:
    """Return the newer of two summaries of a run: its host's last one, or `known`, made from the local record.

    If both show the same progress, return `known`.
    """
    try:
        said = Summary.model_validate_json(local_copy.files.read(LAST_SEEN, MAX_JSON))
    except (OSError, ValueError):
        return known
    return said if said.run == known.run and _progress(said) > _progress(known) else known


def _progress(summary: Summary) -> tuple[int, bool, int]:
    return summary.attempt or 0, is_terminal(summary.state), summary.step or 0
