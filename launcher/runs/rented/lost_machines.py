"""Rented machines that do not answer: check with the provider, and end rentals that are no longer needed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from launcher.errors import BadFileError, HostError, HostKeyError, MachineGoneError, UnreachableError
from launcher.rental.records import RentedMachine, rented_for
from launcher.rental.renting import Rental
from launcher.runs.rented.machine_gone import check_rented
from launcher.runs.run_client import open_client

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.runs.follow.view import View
    from launcher.transport.client.host_client import HostClient
    from launcher.values.host import Host


def reach(host: Host, local_copy: LocalCopy) -> HostClient:
    """Open the host client of a run.

    If its rented machine does not answer, ask the provider whether it is gone. Raises MachineGoneError with
    the cost if it is gone, and the errors of `open_client`.
    """
    try:
        return open_client(host, local_copy)
    except MachineGoneError:
        raise
    except (UnreachableError, HostKeyError):  # the address may belong to another customer by now
        if (found := rented_for(local_copy.run)) is not None:
            look_for(found)
        check_rented(local_copy)
        raise


def end_rental(found: RentedMachine, why: str, view: View) -> Rental | None:
    """Terminate a rental, whatever the state of its run; return None after a failure, which is noted.

    If a process watches the rental, that process notices the end.
    """
    from launcher.rental.lease.renter import open_account  # most machines are not rented

    try:
        with view.stage("end") as stage, contextlib.closing(open_account(found.record.settings)) as account:
            stage.progress(
                f"the rental of {found.record.machine.name}'s machine for {found.rental.intent.run}"
            )
            ended = account.end(found.rental, why)
            cost = account.cost(ended)
            stage.text = f"the machine of {found.rental.intent.run} is gone; it cost at most {cost}"
            return ended
    except (HostError, BadFileError, OSError) as error:
        view.note(f"{error}")
        return None


def look_for(found: RentedMachine) -> RentedMachine:
    """Ask the provider about a machine, and record the end of its rental if the machine is lost; return its present record.

    If the provider does not answer, or the API key is not the key of the rental, the record does not change.
    """
    if not found.rental.is_open:
        return found
    from launcher.rental.lease.renter import open_account
    from launcher.rental.verdict import loss

    with (
        contextlib.suppress(HostError, BadFileError),
        contextlib.closing(open_account(found.record.settings)) as renter,
    ):
        lost = loss(renter.find(found.rental))
        if lost is not None and found.rental.intent.account == renter.provider.account:
            return found._replace(rental=renter.end(found.rental, lost.reason))
    return found
