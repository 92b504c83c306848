"""Tell a host about a run that was abandoned while it did not answer: end it, and record its successor.

This happens at the next contact by any verb of this client. A host is recognized only by the id of its root,
and only runs that this client abandoned are touched.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from launcher.copy import index, move_records
from launcher.copy.local_copy import local_copy_of
from launcher.errors import LaunchError
from launcher.runs.follow.summaries import summary_of
from launcher.runs.run_stopping import stop
from launcher.values.record import is_terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.copy.local_copy import LocalCopy
    from launcher.copy.move_records import MoveRecord
    from launcher.transport.client.host_client import HostClient


said: list[str] = []
"""Messages about the runs that this command has ended, shown to the user when the command ends."""


def deliver(client: HostClient, pending: Sequence[str]) -> None:
    """Tell a host which of these runs to end. Failures are tried again at the next contact."""
    for run in pending:
        local_copy = local_copy_of(run, index.copies_of(run))
        recorded_move = move_records.recorded_move_of(local_copy)
        if recorded_move is None or not recorded_move.is_open:
            with contextlib.suppress(LaunchError):
                move_records.forget(local_copy)
        elif root_of(local_copy) == client.root_id:
            with contextlib.suppress(LaunchError):
                _settle(client, local_copy, recorded_move)


def root_of(local_copy: LocalCopy) -> str | None:
    """Return the id of the root that a run was launched in; None if unknown to this client."""
    entry = local_copy.entry
    return None if entry is None else entry.root


def _settle(client: HostClient, local_copy: LocalCopy, recorded_move: MoveRecord) -> None:
    """End a run, verify that it is dead, and have its host record the successor.

    Wait for the run's end only at the first contact.
    """
    summary = summary_of(client, local_copy.run)
    if summary is not None and not is_terminal(summary.state):
        if recorded_move.told is not None:
            client.runs.wish(local_copy.run, "cancel", force=True)
        else:
            client.runs.wish(local_copy.run, "cancel")
            recorded_move = move_records.note(local_copy, told=time.time())
            ended = stop(client, local_copy.run, now=True, grace_s=0.0).summary
            said.append(
                f"{local_copy.run} on {client.host} was ended, at step {ended.step or '-'}: you abandoned it, and it continues as {recorded_move.run}"
            )
    also = None
    if summary is not None:
        known = client.runs.move(
            local_copy.run, recorded_move.to, recorded_move.given_up
        )  # refused while any part of the run lives
        also = known.run if known != recorded_move.to else None
    now = time.time()
    move_records.note(local_copy, told=recorded_move.told or now, settled=now, also=also)
