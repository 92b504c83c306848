"""Agree on a rent: by what is expected of the machine the plan is made and checked, its price is said, and a person asked.

All of this comes before anything is rented, and costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from launcher.planning.gate import check
from launcher.planning.lambda_machines import expected_facts
from launcher.planning.offers import fits
from launcher.runs import cards, resolve
from launcher.runs.contact import settle
from launcher.runs.key_stays import check_key_stays
from launcher.runs.launching import Resolved
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
from launcher.runs.tenancies import kept_idle, kept_words
from launcher.runs.view import View
from launcher.values.facts import Facts
from launcher.values.plan import Plan
from launcher.values.profile import Profile

PlanFor = Callable[[Profile, Facts], Plan]
"""Makes the plan for a card, and what is expected of the machine."""


class Agreement(NamedTuple):
    """What may be rented, and the plan that is expected for it."""

    choice: RentalChoice
    plan: Plan


def agree(
    resolved: Resolved, plan_for: PlanFor, view: View, *, like: Sequence[Profile] = (), is_sure: bool
) -> Agreement:
    """Return what will do for a launch, once it has passed the gate and its cost is agreed to.

    `like` are profiles that are preferred, if they are offered and none is named.

    Raises RefusedError for a plan that cannot work, a limit that is missing or too small, and for no; UsageError for a job that
    would take this person's key along; HostError if the service does not answer. Nothing is rented then.
    """
    host = resolved.host
    check_limited(host)
    check_key_stays(
        host.name, resolved.job, {name: os.environ.get(name, "") for name in resolved.job.secrets}
    )
    with view.stage("offers") as stage:
        offered = offers(host)
        wrong = name_findings(host, settings_of(host), offered)
        named = resolved.profiles or [one for one in like if any(fits(offer, one) for offer in offered)]
        choice = choose(host, named, resolved.gpus, resolved.job, offered)
        free = sum(bool(choice.regions_of(one)) for one in choice.found)
        stage.text = f"{len(offered)} types, {len(choice.found)} will do, {free or 'none'} of them free"
    settle(wrong, view)
    facts = expected_facts(host, choice.first)
    plan = plan_for(choice.first.profile, facts)
    view.head(plan)
    found = [
        *cards.findings(resolved.gpus, plan, facts),
        *check(plan, facts, host, resolve.wheels(), resolve.cards()),
    ]
    settle(found, view)
    say_price(choice, view)
    for one in kept_idle(host.name):
        view.note(kept_words(one))
    confirm(choice, view, is_sure=is_sure)
    return Agreement(choice, plan)
