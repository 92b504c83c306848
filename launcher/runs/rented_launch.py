"""A launch on a machine that is rented for it: what is offered, the rent, the launch, and no rent without a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.errors import CardBusyError
from launcher.runs.machine_renting import rent
from launcher.runs.planned import plan_of
from launcher.runs.rent_handing import leave
from launcher.runs.rental_agreement import agree
from launcher.runs.rental_order import order_of
from launcher.values.renting import dollars

if TYPE_CHECKING:
    from launcher.runs.launching import Resolved, Started
    from launcher.runs.request import Request
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

    That gets the machine as a plain host with the profile of its cards, the run's id (new unless one is given), and the plan
    that was expected.
    Whatever fails before the run begins ends the rent. A run that may have begun is left to a process in the background.
    """
    agreement = agree(
        resolved, lambda profile, facts: plan_of(profile, resolved, facts), view, is_sure=request.is_sure
    )
    if request.most_cents is not None and agreement.choice.largest > request.most_cents:
        words = f"{resolved.host.name}: prices have just risen: a machine may cost {dollars(agreement.choice.largest)} now"
        raise CardBusyError(words, "another price")
    order = order_of(resolved.host, agreement, request.wait_s)
    order = order if run_id is None else order._replace(run=run_id)
    tenant = rent(order, view)
    try:
        profile = agreement.choice.profile_of(tenant.rental.intent.type)
        machine = resolved._replace(host=tenant.host, profiles=(profile,))
        started = start(machine, order.run, agreement.plan)
    except BaseException:
        leave(tenant, view)
        raise
    return started._replace(tenant=tenant)
