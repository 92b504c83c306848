"""Describe a run whose rented machine is gone: its outcome, its cost, and where the run continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.copy import move_records
from launcher.errors import MachineGoneError
from launcher.rental import records
from launcher.values.record import State, is_terminal
from launcher.values.reported.checkpoint import MANIFEST

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy


def gone(local_copy: LocalCopy) -> str | None:
    """Return the outcome of a run's terminated machine, its cost, and the next commands; None if it is not terminated."""
    found = records.rented_for(local_copy.run)
    if found is None or not found.is_gone:
        return None
    mend = _after_gone(local_copy, found.record)
    return f"{local_copy.run}: {found.why_gone(records.ledger().rentals())}\n  {mend}"


def _after_gone(local_copy: LocalCopy, record: records.RentalRecord) -> str:
    """Return the next commands for a run whose rented machine is gone: for its successor, or to start one."""
    if (moved := move_records.elsewhere(local_copy)) is not None:
        return moved
    short, state, host = local_copy.short, local_copy.state(), record.machine.name
    look = f"downloaded files   launch ls {short}     "
    if not any(
        local_copy.files.is_file(f"checkpoints/{name}/{MANIFEST}")
        for name in local_copy.files.names("checkpoints")
    ):
        return f"{look}{records.NO_CHECKPOINT}   launch rerun {short} --host {host}"
    has_ended = state is not None and is_terminal(state.state)
    verb, more = "resume" if has_ended else "recover", ""
    if state is not None and state.state == State.SUCCEEDED:
        more = " --set steps=…"
    return f"{look}continue elsewhere   launch {verb} {short} --host {host}{more}"


def check_rented(local_copy: LocalCopy) -> None:
    """Raise MachineGoneError for a run whose rental has ended: the machine's address may belong to another customer."""
    if (words := gone(local_copy)) is not None:
        raise MachineGoneError(local_copy.host().name, words)
