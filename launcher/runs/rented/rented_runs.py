"""Runs on rented machines: the lease of a run's machine, and its local records."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.copy import index
from launcher.copy.local_copy import LocalCopy
from launcher.copy.runs_folder import make_runs_folder, runs_folder
from launcher.errors import HostError, LaunchError, RefusedError
from launcher.rental import records
from launcher.rental.records import RentalRecord, RentedMachine
from launcher.rental.renting import RentalState
from launcher.values.record import is_terminal

if TYPE_CHECKING:
    from launcher.rental.lease.rental_lease import Lease
    from launcher.runs.follow.view import View


def local_copy_of(record: RentalRecord) -> LocalCopy | None:
    """Return the local copy of a rental's run; None if its folder is gone, or the run never began."""
    local_copy = LocalCopy(record.run, Path(record.runs))
    return local_copy if index.knows(record.run) and local_copy.files.is_folder() else None


def lease_for(local_copy: LocalCopy, view: View) -> Lease | None:
    """Take the lease of a run's rented machine; None if the run has none, or another process holds the lease.

    Raises BadFileError or ServiceAuthError if its account's key is missing or cannot be used.
    """
    found = _rented_here(local_copy)
    if found is None:
        return None
    from launcher.rental.lease.handoff import keeper_log, take_over  # few runs are on a rented machine

    lease = take_over(found)
    if lease is None:
        log = keeper_log(found.rental.nonce)
        said = f"   {log}" if log is not None else ""
        view.note(
            f"{local_copy.run}: another process on this computer downloads its files and ends the rental{said}"
        )
    return lease


def leave_to_keeper(local_copy: LocalCopy) -> None:
    """Have a background process end the rental of a run's machine, unless one already does, or the machine is not rented.

    Raises BadFileError or ServiceAuthError if its account's key is missing or cannot be used.
    """
    found = _rented_here(local_copy)
    if found is None:
        return
    from launcher.rental.lease.handoff import hand_over, take  # few runs are on a rented machine

    if (lease := take(found)) is not None:
        hand_over(lease)


def end_rent_later(local_copy: LocalCopy, view: View) -> None:
    """Have a background process end the rental of an ended run's machine. A failure is only noted."""
    try:
        leave_to_keeper(local_copy)
    except (HostError, LaunchError, OSError) as error:
        view.note(
            f"{str(error).splitlines()[0]}: the machine of {local_copy.run} is still rented   launch reconcile"
        )


def _rented_here(local_copy: LocalCopy) -> RentedMachine | None:
    """Return the machine that is rented for a run, with the present folder of the run's local copy."""
    found = records.open_for(local_copy.run)
    if found is None:
        return None
    return found._replace(record=found.record.model_copy(update={"runs": str(local_copy.folder.parent)}))


def pass_on(lease: Lease, run: str) -> None:
    """Assign a machine to another run of this folder. Raises RefusedError if that cannot be recorded."""
    try:
        make_runs_folder(runs_folder())
    except OSError as error:
        raise RefusedError(
            f"{runs_folder()}: {error.strerror}\n  no run was begun; make room, then try again"
        ) from error
    lease.assign_to(run, str(runs_folder()))


def leave(lease: Lease, view: View) -> None:
    """End the rental of a failed launch; if its run may have begun, leave it to a background process."""
    if local_copy_of(lease.record) is None:
        lease.give_up(view)
        return
    from launcher.rental.lease.handoff import hand_over

    keeper = hand_over(lease)
    view.note(
        f"{lease.record.run} may have begun: process {keeper.pid} follows it, and ends the rental   {keeper.log}"
    )


def unattended(runs: Collection[str]) -> list[LocalCopy]:
    """Return those of the given runs whose machine is rented without a process that watches it."""
    own = (
        one for one in records.rented() if one.rental.is_open and one.record.run in runs and not one.is_held
    )
    return [local_copy for one in own if (local_copy := local_copy_of(one.record)) is not None]


def still_rented(local_copy: LocalCopy) -> str | None:
    """Return the cost of a run's machine that is still rented, and the command that ends it; None if none is."""
    found, cost = records.open_for(local_copy.run), records.rent_cost(local_copy.run)
    if found is None or cost is None or found.rental.instance is None:
        return None
    loses = "" if local_copy.is_freed else " --force"
    what = "to end it" if local_copy.is_freed else "terminate it, and lose the files that are only on it"
    return f"its machine is still rented: {cost.words}; {what}   launch reconcile --adopt {found.rental.instance}{loses}"


def is_ending(local_copy: LocalCopy) -> bool:
    """Return whether a run has ended and its rented machine is being terminated, so that it no longer answers."""
    found, state = records.rented_for(local_copy.run), local_copy.state()
    is_over = state is not None and is_terminal(state.state)
    return is_over and found is not None and found.rental.state is RentalState.ENDING


def kept_idle(host_name: str) -> list[str]:
    """Return notes about a host's machines that are kept after their runs' end, before another one is rented."""
    found = []
    for one in records.rented():
        local_copy = local_copy_of(one.record) if one.record.keeps and one.rental.is_open else None
        state = local_copy.state() if local_copy is not None else None
        if one.record.machine.name == host_name and local_copy and state and is_terminal(state.state):
            found.append(_kept_words(one, local_copy, has_checkpoint=state.checkpoint is not None))
    return found


def _kept_words(found: RentedMachine, local_copy: LocalCopy, *, has_checkpoint: bool) -> str:
    short = found.record.short
    use = (
        f"continue the training on it   launch resume {short} --set steps=…"
        if has_checkpoint
        else f"use that machine by hand   launch exec {short} -- …"
    )
    use = "" if local_copy.is_freed else f"   {use}  "
    return (
        f"{found.record.machine.name}: the machine of {found.record.run} is kept, at {found.rental.price}, and this rents another one"
        f"{use}   end it   launch reconcile --adopt {found.rental.instance}"
    )
