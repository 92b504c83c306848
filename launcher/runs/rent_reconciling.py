"""Reconcile what is rented: runs that are over come home and their machines end, orphans end, and what goes on is looked after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from launcher.errors import LaunchError, ServiceError, UnreachableError
from launcher.hosts.reconciler import Reconciled, reconcile, survey
from launcher.hosts.rental_account import LambdaAccount, has_key, open_account
from launcher.runs import resolve, tenancies
from launcher.runs.control import known_summary
from launcher.runs.mirror import Mirror
from launcher.runs.rent_ending import bring_home, end_rent, is_over
from launcher.runs.run_desk import open_desk
from launcher.runs.tenancies import RentedMachine
from launcher.runs.tenant import Tenant, take
from launcher.runs.view import View
from launcher.values.lambda_settings import LambdaSettings
from launcher.values.renting import RentalReason, RentalState


class Report(NamedTuple):
    """What became of the rentals of one account."""

    account: str
    done: Reconciled


def reconcile_all(adopted: Sequence[str], view: View, *, dry_run: bool) -> list[Report]:
    """Reconcile every account that this user has rented at, or that a table here names.

    With `dry_run` nothing is changed. Raises BadFileError or ServiceAuthError without a key, and ServiceError.
    """
    return [_reconcile(settings, adopted, view, dry_run=dry_run) for settings in _accounts(adopted)]


def _accounts(adopted: Sequence[str]) -> list[LambdaSettings]:
    """Return settings for each service that may have something of ours."""
    named = [host.lambda_cloud.api for host in resolve.hosts().values() if host.lambda_cloud is not None]
    found = dict.fromkeys([*tenancies.services(), *named])
    if not found and (adopted or has_key()):
        return [LambdaSettings()]
    return [LambdaSettings(api=api) for api in found]


def _reconcile(settings: LambdaSettings, adopted: Sequence[str], view: View, *, dry_run: bool) -> Report:
    account = open_account(settings)
    renter = account.renter
    try:
        found = [one for one in tenancies.rented() if _is_at(one, account)]
        if dry_run:
            wanted = {one.rental.intent.run for one in found if tenancies.mirror_of(one.tenancy) is not None}
            judged = survey(renter, wanted, adopted)
            return Report(renter.provider.account, Reconciled((), judged, renter.ledger.unreadable()))
        wanted = {
            one.rental.intent.run
            for one in found
            if one.rental.instance not in adopted and _goes_on(one, view)
        }
        return Report(renter.provider.account, reconcile(renter, wanted, adopted))
    finally:
        account.close()


def _is_at(found: RentedMachine, account: LambdaAccount) -> bool:
    """Whether a machine of ours is ready at an account, so that a run may be there."""
    rental = found.rental
    return rental.state is RentalState.READY and rental.intent.account == account.renter.provider.account


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
