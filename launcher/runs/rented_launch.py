"""A launch on a machine that is rented for it: what is offered, the rent, the launch, and no rent without a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.runs import tenancies
from launcher.runs.machine_renting import Order, rent
from launcher.runs.rental_choice import offers, settings_of
from launcher.runs.run_id import new_run_id
from launcher.runtimes import load

if TYPE_CHECKING:
    from launcher.runs.launching import Resolved, Started
    from launcher.runs.request import Request
    from launcher.runs.tenant import Tenant
    from launcher.runs.view import View
    from launcher.values.plan import Plan


def on_rented_machine(
    resolved: Resolved,
    request: Request,
    view: View,
    start: Callable[[Resolved, str, Plan], Started],
    run_id: str | None = None,
) -> Started:
    """Rent a machine, and start a run on it by `start`.

    That gets the machine as a plain host with the profile of its cards, the run's id (new unless one is given), and the plan that was expected.
    Whatever fails before the run begins ends the rent. A run that may have begun is left to a process in the background.
    """
    from launcher.runs.rental_agreement import agree  # it plans as a launch does

    host = resolved.host
    choice, expected = agree(resolved, request, view)
    order = Order(
        host,
        settings_of(host),
        run_id or new_run_id(resolved.job.name),
        () if request.wait_s > 0 and not choice.is_any_free else choice.candidates(),
        lambda: choice.renewed(offers(host)).candidates(),
        request.wait_s,
        load(expected.runtime).has_images,
    )
    tenant = rent(order, view)
    try:
        profile = choice.profile_of(tenant.rental.intent.type)
        started = start(resolved._replace(host=tenant.host, profiles=(profile,)), order.run, expected)
    except BaseException:
        _leave(tenant, view)
        raise
    return started._replace(tenant=tenant)


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
