"""Agree on a rent: by what is expected of the machine the plan is made and checked, its price is said, and a person asked.

All of this comes before anything is rented, and costs nothing.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from launcher.planning.gate import check
from launcher.planning.lambda_machines import expected_facts
from launcher.planning.offers import fits
from launcher.runs import cards, resolve
from launcher.runs.api_key_guard import check_key_is_not_sent
from launcher.runs.contact import settle
from launcher.runs.machine_renting import Order
from launcher.runs.rental_choice import (
    RentalChoice,
    check_limited,
    choose,
    confirm,
    offers,
    say_price,
    settings_of,
)
from launcher.runs.rental_names import name_findings
from launcher.runs.rented_runs import kept_idle
from launcher.runs.run_id import new_run_id
from launcher.runs.view import View
from launcher.runs.wanted_machine import Wanted
from launcher.runtimes import load
from launcher.values.plan import Plan


class Agreement(NamedTuple):
    """What may be rented, and the plan that is expected for it."""

    choice: RentalChoice
    plan: Plan


def agree(wanted: Wanted, view: View) -> Agreement:
    """Return what will do for a launch, once it has passed the gate and its cost is agreed to.

    Raises RefusedError for a plan that cannot work, a limit that is missing or too small, and for no; UsageError for a job that
    would take this person's key along; HostError if the service does not answer. Nothing is rented then.
    """
    host = wanted.host
    check_limited(host)
    check_key_is_not_sent(
        host.name, wanted.job, {name: os.environ.get(name, "") for name in wanted.job.secrets}
    )
    with view.stage("offers") as stage:
        offered = offers(host)
        wrong = name_findings(host, settings_of(host), offered)
        named = wanted.profiles or [one for one in wanted.like if any(fits(offer, one) for offer in offered)]
        choice = choose(host, named, wanted.gpus, wanted.job, offered)
        free = sum(bool(choice.regions_of(one)) for one in choice.found)
        stage.text = f"{len(offered)} types, {len(choice.found)} will do, {free or 'none'} of them free"
    settle(wrong, view)
    facts = expected_facts(host, choice.first)
    plan = wanted.plan_for(choice.first.profile, facts)
    view.head(plan)
    found = [
        *cards.findings(wanted.gpus, plan, facts),
        *check(plan, facts, host, resolve.wheels(), resolve.cards()),
    ]
    settle(found, view)
    say_price(choice, view)
    for words in kept_idle(host.name):
        view.note(words)
    confirm(choice, view, is_sure=wanted.is_sure)
    return Agreement(choice, plan)


def order_of(wanted: Wanted, agreement: Agreement) -> Order:
    """Return the order for a run. Raises CardBusyError if nothing is free and nobody waits."""
    choice, plan = agreement
    return Order(
        wanted.host,
        settings_of(wanted.host),
        wanted.run or new_run_id(plan.job),
        () if wanted.wait_s > 0 and not choice.is_any_free else choice.candidates(),
        lambda: choice.renewed(offers(wanted.host)).candidates(),
        wanted.wait_s,
        load(plan.runtime).has_images,
    )
