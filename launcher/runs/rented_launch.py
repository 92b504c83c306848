"""A launch on a machine that is rented for it: what is offered, the rent, the launch, and no rent without a run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.errors import RefusedError
from launcher.hosts.lambda_account import open_account
from launcher.planning.offers import Candidate, Limits, candidates
from launcher.runs import tenancies
from launcher.runs.renting import Order, rent
from launcher.runs.run_id import new_run_id

if TYPE_CHECKING:
    from launcher.runs.launching import Resolved, Started
    from launcher.runs.request import Request
    from launcher.runs.tenant import Tenant
    from launcher.runs.view import View
    from launcher.values.lambda_settings import LambdaSettings


def on_rented_machine(
    resolved: Resolved, request: Request, view: View, start: Callable[[Resolved, str], Started]
) -> Started:
    """Rent a machine, and start a run on it by `start`, which gets the machine as a plain host, and the run's id.

    Whatever fails before the run begins ends the rent. A run that may have begun is left to a process in the background.
    """
    settings = resolved.host.lambda_cloud
    if settings is None or request.verifies:
        raise RefusedError(
            f"{resolved.host.name}: a verification keeps what it measures on its machine, and this one would be gone"
        )
    find = functools.partial(_find, resolved, settings)
    run = new_run_id(resolved.job.name)
    order = Order(resolved.host, settings, resolved.job, run, find(), find, request.wait_s)
    tenant = rent(order, view)
    try:
        started = start(resolved._replace(host=tenant.host), run)
    except BaseException:
        _leave(tenant, view)
        raise
    return started._replace(tenant=tenant)


def _find(resolved: Resolved, settings: LambdaSettings) -> tuple[Candidate, ...]:
    """Return what may be rented for a request, by what is offered just now. Raises CardBusyError, RefusedError, HostError."""
    account = open_account(settings)
    try:
        return candidates(
            resolved.host.name,
            account.renter.provider.offers(),
            Limits(max_hours=settings.max_hours, max_cents=settings.max_cents),
            profile=next(iter(resolved.profiles), None),
            types=settings.type,
            regions=settings.region,
        )
    finally:
        account.close()


def _leave(tenant: Tenant, view: View) -> None:
    """End the rent of a launch that failed, unless its run may have begun: then it is looked after."""
    mirror = tenancies.mirror_of(tenant.tenancy)
    if mirror is None:
        tenant.give_up(view)
        tenant.release()
        return
    keeper = tenant.hand_over(mirror)
    view.note(
        f"{mirror.run} may have begun: process {keeper.pid} looks after it, and ends the rent   {keeper.log}"
    )
