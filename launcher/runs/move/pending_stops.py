"""Tell a host about a run that was abandoned while it did not answer: end it, and record its successor.

This happens at the next contact by any verb of this client. A host is recognized only by the id of its root,
and only runs that this client abandoned are touched.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from launcher.copy import index, move_records
from launcher.copy.mirror import mirror_of
from launcher.errors import LaunchError
from launcher.runs.follow.summaries import summary_of
from launcher.runs.run_stopping import stop
from launcher.values.record import is_terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.copy.mirror import LocalCopy
    from launcher.copy.move_record import MoveRecord
    from launcher.transport.client.desk import HostClient


said: list[str] = []
"""Messages about the runs that this command has ended, shown to the user when the command ends."""


def deliver(desk: HostClient, pending: Sequence[str]) -> None:
    """Tell a host which of these runs to end. Failures are tried again at the next contact."""
    for run in pending:
        mirror = mirror_of(run, index.copies_of(run))
        departure = move_records.departure_of(mirror)
        if departure is None or not departure.is_open:
            with contextlib.suppress(LaunchError):
                move_records.forget(mirror)
        elif root_of(mirror) == desk.root_id:
            with contextlib.suppress(LaunchError):
                _settle(desk, mirror, departure)


def root_of(mirror: LocalCopy) -> str | None:
    """Return the id of the root that a run was launched in; None if unknown to this client."""
    entry = mirror.entry
    return None if entry is None else entry.root


def _settle(desk: HostClient, mirror: LocalCopy, departure: MoveRecord) -> None:
    """End a run, verify that it is dead, and have its host record the successor.

    Its end is awaited only the first time.
    """
    summary = summary_of(desk, mirror.run)
    if summary is not None and not is_terminal(summary.state):
        if departure.told is not None:
            desk.runs.wish(mirror.run, "cancel", force=True)
        else:
            desk.runs.wish(mirror.run, "cancel")
            departure = move_records.note(mirror, told=time.time())
            ended = stop(desk, mirror.run, now=True, grace_s=0.0).summary
            said.append(
                f"{mirror.run} on {desk.host} was ended, at step {ended.step or '-'}: you abandoned it, and it continues as {departure.run}"
            )
    also = None
    if summary is not None:
        known = desk.runs.move(
            mirror.run, departure.to, departure.given_up
        )  # refused while any part of the run lives
        also = known.run if known != departure.to else None
    now = time.time()
    move_records.note(mirror, told=departure.told or now, settled=now, also=also)
