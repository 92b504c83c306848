"""Extend the rental of a machine: pass a later limit to its run, its managing process and the ledger."""

from __future__ import annotations

import contextlib

from launcher.errors import HostError, RefusedError, ServiceError, UsageError
from launcher.rental.lease.instance_login import InstanceLogin
from launcher.rental.lease.rental_lease import LAST_S
from launcher.rental.lease.renter import open_account
from launcher.rental.price import Cost, hours_text
from launcher.rental.records import RentedMachine, ledger
from launcher.rental.renting import Rental, RentalState, download_reserve_s
from launcher.rental.verdict import loss


def cost_with(found: RentedMachine, seconds: float) -> Cost:
    """Return the cost of a rental with this many more seconds. Raises UsageError if it cannot be extended."""
    rental, record = found.rental, found.record
    if rental.state is not RentalState.READY:
        raise UsageError(
            f"{record.run}: its machine is {rental.state.value}: its rental cannot be extended\n  rented machines   launch hosts"
        )
    if not ledger().reads_limits(rental.nonce):
        raise UsageError(
            f"{record.run}: its machine is managed by a process of an older launcher, which does not notice a later limit\n"
            "  end that process, then   launch reconcile     and again   launch extend"
        )
    return Cost(
        f"{record.run}: with {hours_text(seconds)} more, its machine",
        rental.cents_at(rental.intent.deadline + seconds),
        record.settings.confirm_above,
        f"launch extend {record.short} --hours {seconds / 3600:g} --yes",
        "fewer --hours cost less",
    )


def extend(found: RentedMachine, seconds: float) -> Rental:
    """Extend a rental by this many seconds. Return the resulting rental.

    The machine is informed first. If it does not answer, nothing changes. Raises UsageError, ServiceError,
    HostError, and RefusedError if the ledger cannot be written.
    """
    rental, record, book = found.rental, found.record, ledger()
    with contextlib.closing(open_account(record.settings)) as renter:
        renter.learn_time()
        lost, now = loss(renter.find(rental)), renter.clock.now()
        rental = renter.known(rental)
        if lost is not None:
            raise ServiceError(
                record.machine.name,
                lost.reason,
                f"{record.run}: {lost.words}\n  rented machines   launch reconcile",
            )
        if now >= rental.intent.deadline - LAST_S:
            raise UsageError(
                f"{record.run}: its rental has reached its limit\n  rented machines   launch hosts"
            )
        deadline = rental.intent.deadline + seconds
        with contextlib.closing(InstanceLogin(record.machine)) as login:
            login.note_end(deadline - download_reserve_s(deadline - rental.intent.time) - now, record.run)
            try:
                return book.note_limit(rental.nonce, deadline)
            except OSError as error:
                with contextlib.suppress(HostError):
                    login.note_end(rental.intent.deadline - rental.download_reserve_s - now, record.run)
                raise RefusedError(
                    f"{book.words(error)}\n  make room, then type the same command again"
                ) from error
