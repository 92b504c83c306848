"""Reconcile what is rented: runs that are over come home and their machines end, orphans end, and what goes on is looked after."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcher.errors import LaunchError, ServiceError, UnknownNameError, UnreachableError, UsageError
from launcher.hosts.reconciler import Reconciled, reconcile, survey
from launcher.hosts.rental_account import LambdaAccount, has_key, open_account
from launcher.runs import resolve, tenancies
from launcher.runs.control import known_summary
from launcher.runs.mirror import Mirror
from launcher.runs.rent_ending import bring_home, end_rent, is_over
from launcher.runs.run_desk import open_desk
from launcher.runs.run_id import find
from launcher.runs.tenancies import RentedMachine
from launcher.runs.tenant import Tenant, take
from launcher.runs.view import View
from launcher.values.clock import SystemClock
from launcher.values.lambda_settings import LambdaSettings
from launcher.values.renting import Instance, Rental, RentalReason, RentalState


class Report(NamedTuple):
    """What became of the rentals of one account, and which instances it still has."""

    account: str
    done: Reconciled
    listed: frozenset[str]


class Named(NamedTuple):
    """Instances that the user wants ended, whoever's they are, and from which time on; None for now."""

    instances: Sequence[str] = ()
    after: float | None = None


def reconcile_all(named: Named, view: View, *, dry_run: bool) -> list[Report]:
    """Reconcile every account that this user has rented at, or that a table here names.

    With `dry_run` nothing is changed. Raises BadFileError or ServiceAuthError without a key, and ServiceError.
    """
    return [_reconcile(settings, named, view, dry_run=dry_run) for settings in _accounts(named.instances)]


def dismiss(word: str) -> Rental:
    """Have no command speak any more of the open rental for a run, which was made with a key that is lost.

    Nothing is claimed about its machine. Raises UsageError if the key that is here could end it, UnknownNameError if nothing
    open is for such a run, and ServiceError.
    """
    book, rented = tenancies.ledger(), [*tenancies.rented()]
    open_ones = {rental.intent.run: rental for rental in book.rentals() if rental.is_open}
    open_ones |= {one.tenancy.run: one.rental for one in rented if one.rental.is_open}
    if not open_ones:
        raise UnknownNameError(
            "nothing is rented, as far as is known here\n  what the account has   launch reconcile"
        )
    found = open_ones[find(word, [*open_ones])]
    tenancy = next((one.tenancy for one in rented if one.rental.nonce == found.nonce), None)
    apis = [tenancy.settings.api] if tenancy is not None else tenancies.services()
    if has_key() and any(_is_in_reach(found, api) for api in apis):
        raise UsageError(
            f"{found.intent.run}: the API key that is here can end its machine, so it is not dismissed\n  end it   launch reconcile"
        )
    return book.step(found.nonce, RentalState.DISMISSED, SystemClock().now(), why="dismissed by you")


def _is_in_reach(rental: Rental, api: str) -> bool:
    with contextlib.closing(open_account(LambdaSettings(api=api))) as account:
        provider = account.renter.provider
        if rental.intent.account == provider.account:
            return True
        return any(instance.nonce == rental.nonce for instance in provider.instances())


def _accounts(adopted: Sequence[str]) -> list[LambdaSettings]:
    """Return settings for each service that may have something of ours."""
    named = [host.lambda_cloud.api for host in resolve.hosts().values() if host.lambda_cloud is not None]
    found = dict.fromkeys([*tenancies.services(), *named])
    if not found and (adopted or has_key()):
        return [LambdaSettings()]
    return [LambdaSettings(api=api) for api in found]


def _reconcile(settings: LambdaSettings, named: Named, view: View, *, dry_run: bool) -> Report:
    account = open_account(settings)
    renter = account.renter
    is_early = named.after is not None and renter.clock.now() < named.after
    adopted = () if is_early else named.instances
    try:
        listed = renter.provider.instances()
        found = [one for one in tenancies.rented() if _is_at(one, account, listed)]
        if dry_run:
            wanted = {one.rental.intent.run for one in found if tenancies.mirror_of(one.tenancy) is not None}
            judged = survey(renter, wanted, adopted)
            done = Reconciled((), judged, renter.ledger.unreadable())
            return Report(renter.provider.account, done, _ids(listed))
        wanted = {
            one.rental.intent.run
            for one in found
            if one.rental.instance not in adopted and _goes_on(one, view)
        }
        done = reconcile(renter, wanted, adopted)
        left = (one.instance for one in done.judged if one.instance is not None)
        return Report(renter.provider.account, done, _ids(left))
    finally:
        account.close()


def _ids(instances: Iterable[Instance]) -> frozenset[str]:
    return frozenset(instance.id for instance in instances if instance.is_billed)


def _is_at(found: RentedMachine, account: LambdaAccount, listed: Iterable[Instance]) -> bool:
    """Whether a machine of ours is ready at an account, so that a run may be there. An account may have a new key."""
    rental = found.rental
    is_here = rental.intent.account == account.renter.provider.account
    return rental.state is RentalState.READY and (
        is_here or any(instance.nonce == rental.nonce for instance in listed)
    )


def _goes_on(found: RentedMachine, view: View) -> bool:
    """Deal with the run of a machine that no process looks after; return whether the machine is still wanted."""
    mirror = tenancies.mirror_of(found.tenancy)
    if mirror is None:
        return False  # its launch came to nothing
    tenant = take(found)
    if tenant is None:
        return True
    try:
        return _deal_with(tenant, mirror, view)
    except ServiceError as error:
        view.note(str(error))
        return tenant.rental.is_open
    except LaunchError as error:
        view.note(_unsure(tenant, error))
        return not tenant.is_past
    finally:
        tenant.release()


def _deal_with(tenant: Tenant, mirror: Mirror, view: View) -> bool:
    try:
        with open_desk(tenant.host, mirror) as desk:
            state = known_summary(desk, mirror.run).state
            if tenant.is_past:
                bring_home(desk, mirror, state, view)
    except UnreachableError as error:
        tenant.watch(view, error)
        raise
    if tenant.is_past:
        tenant.end(RentalReason.LIMIT, view)
        return False
    if is_over(state):
        end_rent(tenant, mirror, state, view)
        return tenant.rental.is_open
    keeper = tenant.hand_over(mirror)
    view.note(f"{mirror.run} goes on: process {keeper.pid} looks after it from now on   {keeper.log}")
    return True


def _unsure(tenant: Tenant, error: LaunchError) -> str:
    """Return what is said of a machine whose run cannot be brought home just now."""
    words = str(error).splitlines()[0]
    left = "its time is up, so it is ended all the same" if tenant.is_past else f"left until {tenant.until}"
    return f"{tenant.tenancy.run}: {words}; {left}; {tenant.cost} so far, {tenant.price}"
