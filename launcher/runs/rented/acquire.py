"""The machine for a run: rented for a while, or the host itself if the user owns it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends.registry import backend_of
from launcher.errors import CardBusyError

if TYPE_CHECKING:
    from launcher.rental.lease.rental_lease import Lease
    from launcher.runs.follow.view import View
    from launcher.runs.launch.wanted_machine import Wanted
    from launcher.values.host import Host
    from launcher.values.plan import Plan
    from launcher.values.profile import Profile


class Acquired(NamedTuple):
    """A plain host for a run.

    If it is rented: the profile of its cards, the plan that was shown, and the lease.
    """

    host: Host
    run: str | None = None
    profile: Profile | None = None
    plan: Plan | None = None
    lease: Lease | None = None


@contextmanager
def acquire(wanted: Wanted, view: View) -> Iterator[Acquired]:
    """Yield a machine for a run.

    If the block fails, the rental ends; if the run may have begun, a background process watches it instead.
    Raises RefusedError if the plan or the price is refused, CardBusyError if no machine is free, HostError; in
    these cases no machine is rented.
    """
    if backend_of(wanted.host).running.rental(wanted.host) is None:
        yield Acquired(wanted.host, wanted.run)
        return
    from launcher.rental.renting import dollars
    from launcher.runs.rented.machine_renting import rent  # few runs are on a rented machine
    from launcher.runs.rented.rental_agreement import agree

    choice, plan = agree(wanted, view)
    largest = choice.cost.largest
    if wanted.most_cents is not None and largest > wanted.most_cents:
        words = f"{wanted.host.name}: prices have just risen: a machine may cost {dollars(largest)} now"
        raise CardBusyError(words, "another price")
    lease = rent(wanted, choice, plan, view)
    with left_on_failure(lease, view):
        profile = choice.profile_of(lease.rental.intent.type)
        yield Acquired(lease.host, lease.record.run, profile, plan, lease)


@contextmanager
def left_on_failure(lease: Lease, view: View) -> Iterator[None]:
    """End the rental if the block fails, unless its run may have begun."""
    from launcher.runs.rented.rented_runs import leave

    try:
        yield
    except BaseException:
        leave(lease, view)
        raise
