"""What a run's host said last of it in one line, without its records: a listing asks for no more.

It is kept beside the mirror, so that a host that answers no longer does not turn an end that was shown into a run that goes on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from launcher.copy.run_files import MOST_JSON
from launcher.values.record import Summary, is_terminal

if TYPE_CHECKING:
    from launcher.copy.mirror import Mirror

LAST_SEEN = ".last-seen.json"


def note(mirror: Mirror, summary: Summary) -> None:
    """Keep what a host has just said of a run. What the disk refuses is only not known later."""
    data = summary.model_dump_json().encode()
    with contextlib.suppress(OSError):
        if not mirror.files.exists(LAST_SEEN) or mirror.files.read(LAST_SEEN, MOST_JSON) != data:
            with mirror.files.open(LAST_SEEN, "wb") as file:
                file.write(data)  # a torn one counts as none


def latest(mirror: Mirror, known: Summary) -> Summary:
    """Return what is known of a run: what its host said last, or `known`, by its records here, if that is further on."""
    try:
        said = Summary.model_validate_json(mirror.files.read(LAST_SEEN, MOST_JSON))
    except (OSError, ValueError):
        return known
    return said if said.run == known.run and _progress(said) > _progress(known) else known


def _progress(summary: Summary) -> tuple[int, bool, int]:
    return summary.attempt or 0, is_terminal(summary.state), summary.step or 0
