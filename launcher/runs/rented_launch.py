"""A launch on a machine that is rented for it: what is offered, the rent, the launch, and no rent without a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.errors import RefusedError
from launcher.planning import check
from launcher.planning.lambda_machines import expected_facts
from launcher.runs import resolve, tenancies
from launcher.runs.contact import settle
from launcher.runs.lambda_account import RentalChoice, choose, confirm, open_account, say_price, settings_of
from launcher.runs.renting import Order, rent
from launcher.runs.run_id import new_run_id
from launcher.runtimes import load

if TYPE_CHECKING:
    from launcher.runs.launching import Resolved, Started
    from launcher.runs.request import Request
    from launcher.runs.tenant import Tenant
    from launcher.runs.view import View


def on_rented_machine(
    resolved: Resolved, request: Request, view: View, start: Callable[[Resolved, str], Started]
) -> Started:
    """Rent a machine, and start a run on it by `start`, which gets the machine as a plain host, and the run's id.

    Whatever fails before the run begins ends the rent. A run that may have begun is left to a process in the background.
    """
    host, job = resolved.host, resolved.job
    if request.verifies:
        raise RefusedError(
            f"{host.name}: a verification keeps what it measures on its machine, and a rented one is gone after it"
        )
    account = open_account(host)

    def choose_now() -> RentalChoice:
        return choose(host, resolved.profiles, resolved.gpus, job, account.offers())

    choice = choose_now()
    needs_engine = _check(resolved, choice, view)
    say_price(choice, view)
    confirm(choice, view, is_sure=request.is_sure)
    order = Order(
        host,
        settings_of(host),
        new_run_id(job.name),
        () if request.wait_s > 0 and not _is_free(choice) else choice.candidates(),
        lambda: choose_now().candidates(),
        request.wait_s,
        needs_engine,
    )
    tenant = rent(order, view)
    try:
        started = start(resolved._replace(host=tenant.host), order.run)
    except BaseException:
        _leave(tenant, view)
        raise
    return started._replace(tenant=tenant)


def _is_free(choice: RentalChoice) -> bool:
    return any(choice.regions_of(one) for one in choice.found)


def _check(resolved: Resolved, choice: RentalChoice, view: View) -> bool:
    """Pass the gate with what is expected of the machine; return whether the run would be in a container.

    Raises RefusedError: then nothing was rented.
    """
    from launcher.runs.launching import plan_of

    facts = expected_facts(resolved.host, choice.first)
    plan = plan_of(choice.first.profile, resolved, facts)
    settle(check(plan, facts, resolved.host, resolve.wheels()), view)
    return load(plan.runtime).has_images


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
