"""Rented machines that do not answer: whether the provider still has one, and the end of a rent that nobody needs any more."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from launcher.errors import BadFileError, HostError, HostKeyError, MachineGoneError, UnreachableError
from launcher.rental.records import RentedMachine, rented_for
from launcher.rental.renting import Rental
from launcher.runs.rented.machine_gone import check_rented
from launcher.runs.run_desk import open_desk

if TYPE_CHECKING:
    from launcher.copy.mirror import Mirror
    from launcher.runs.follow.view import View
    from launcher.transport.client.desk import HostClient
    from launcher.values.host import Host


def reach(host: Host, mirror: Mirror) -> HostClient:
    """Open the desk of a run. If its machine is rented and does not answer, its provider is asked whether it is gone.

    Raises MachineGoneError then, with what it cost, and what `open_desk` raises.
    """
    try:
        return open_desk(host, mirror)
    except MachineGoneError:
        raise
    except (UnreachableError, HostKeyError):  # the address may be another customer's by now
        if (found := rented_for(mirror.run)) is not None:
            look_for(found)
        check_rented(mirror)
        raise


def end_rental(found: RentedMachine, why: str, view: View) -> Rental | None:
    """End a rent whatever is on its machine, and whoever looks after it; None if that failed, which is said.

    The process that looks after it, if there is one, finds that out by itself.
    """
    from launcher.rental.lease.renter import open_account  # most machines are not rented

    try:
        with view.stage("end") as stage, contextlib.closing(open_account(found.record.settings)) as account:
            stage.progress(f"the rent of {found.record.machine.name}'s machine for {found.rental.intent.run}")
            ended = account.end(found.rental, why)
            cost = account.cost(ended)
            stage.text = f"the machine of {found.rental.intent.run} is gone; it cost at most {cost}"
            return ended
    except (HostError, BadFileError, OSError) as error:
        view.note(f"{error}")
        return None


def look_for(found: RentedMachine) -> RentedMachine:
    """Ask the provider for a machine, and record the end of its rent if it is lost; return the machine as it is now.

    A provider that does not answer, and another key than the one that it was rented with, change nothing.
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
