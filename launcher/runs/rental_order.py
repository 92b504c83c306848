"""From what was agreed to be rented to the order for it."""

from __future__ import annotations

from launcher.runs.machine_renting import Order
from launcher.runs.rental_agreement import Agreement
from launcher.runs.rental_choice import offers, settings_of
from launcher.runs.run_id import new_run_id
from launcher.runtimes import load
from launcher.values.host import Host


def order_of(host: Host, agreement: Agreement, wait_s: float) -> Order:
    """Return the order for a run, whose id is drawn here. Raises CardBusyError if nothing is free and nobody waits."""
    choice, plan = agreement
    return Order(
        host,
        settings_of(host),
        new_run_id(plan.job),
        () if wait_s > 0 and not choice.is_any_free else choice.candidates(),
        lambda: choice.renewed(offers(host)).candidates(),
        wait_s,
        load(plan.runtime).has_images,
    )
