"""A move onto a machine that is rented for it: the run goes on there, and the rent is the new run's.

Nothing is rented before all is known that can be refused, and the old run goes on until the machine is ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import UsageError
from launcher.runs import departures
from launcher.runs.arriving import Heir, consented, resolved_there
from launcher.runs.lost_machines import look_for
from launcher.runs.machine_renting import rent
from launcher.runs.mirror import Mirror
from launcher.runs.moving import check_move, move_to
from launcher.runs.planned import plan_with
from launcher.runs.rent_handing import hand_over, leave
from launcher.runs.rental_agreement import Agreement, agree
from launcher.runs.rental_choice import check_limited
from launcher.runs.rental_order import order_of
from launcher.runs.runs_folder import runs_folder
from launcher.runs.tenancies import rented_for
from launcher.runs.tenant import Tenant, take

if TYPE_CHECKING:
    from launcher.runs.arriving import MoveRequest
    from launcher.runs.recovering import Recovery
    from launcher.runs.view import View
    from launcher.values.host import Host
    from launcher.values.plan import Plan


def move_to_rented(mirror: Mirror, target: Host, request: MoveRequest, view: View) -> Recovery:
    """Rent a machine, and have a run go on there; a process in the background looks after it then.

    Whatever fails before the new run begins ends the rent. Raises what `move` and a launch raise.
    """
    tenant = _tenant_of_earlier(mirror, target)
    if tenant is not None:
        heir = Heir(expect=tenant.take_in)
    else:
        tenant, shown = _rented(mirror, target, request, view)
        heir, request = Heir(tenant.tenancy.run, shown), request._replace(is_sure=True)
    try:
        recovery = move_to(mirror, tenant.host, request, heir, view)
    except BaseException:
        leave(tenant, view)
        raise
    hand_over(tenant, Mirror(recovery.run, runs_folder()), view)
    return recovery


def agreed_like(before: Plan, target: Host, request: MoveRequest, view: View) -> Agreement:
    """Have it agreed what is rented for a run that goes on with one of this plan. Raises RefusedError."""
    resolved = resolved_there(before, target, request.profile or target.profile)
    return agree(
        resolved,
        lambda profile, facts: plan_with(profile, resolved, facts, before.script_use),
        view,
        like=(before.profile,),
        is_sure=request.is_sure,
    )


def rented_like(before: Plan, target: Host, request: MoveRequest, view: View) -> tuple[Tenant, Plan]:
    """Rent a machine for a run that goes on with one of this plan, once it was agreed to; return the plan that was shown."""
    agreement = agreed_like(before, target, request, view)
    return rent(order_of(target, agreement, request.wait_s), view), agreement.plan


def _rented(mirror: Mirror, target: Host, request: MoveRequest, view: View) -> tuple[Tenant, Plan]:
    """Rent a machine for a run's successor, once it was agreed to; return the plan that was shown."""
    check_limited(target)
    sender = check_move(mirror, target, request, view)
    before = mirror.whole_plan()
    consented(mirror, before, target, sender, request, view)
    return rented_like(before, target, request, view)


def _tenant_of_earlier(mirror: Mirror, target: Host) -> Tenant | None:
    """Look after the machine of an earlier move of a run that broke off, if it is still rented; else return None.

    Raises UsageError if another process does.
    """
    earlier = departures.intention_of(mirror)
    if earlier is None:
        return None
    found = rented_for(earlier.run)
    if found is None or not look_for(found).rental.is_open or found.tenancy.machine.name != target.name:
        return None
    tenant = take(found)
    if tenant is None:
        raise UsageError(departures.moved_words(mirror, earlier.to))
    return tenant
