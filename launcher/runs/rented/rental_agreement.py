"""Agree on a rental: make and check the plan for the expected machine, show the price, and ask the user.

All of this happens before the rental, and costs nothing. A preview shows the same without asking. The final
plan is made from a probe of the machine.
"""

from __future__ import annotations

import os

from launcher.backends.base.rental_choice import (
    check_limited,
    choose,
    expected,
    offers,
    settings_of,
)
from launcher.backends.registry import backend_of
from launcher.config import resolve
from launcher.config.resolved import Resolved
from launcher.errors import CardBusyError, RefusedError
from launcher.rental.offers import fits
from launcher.rental.price import RentalChoice
from launcher.runs.follow.view import View
from launcher.runs.launch import cards
from launcher.runs.launch.preflight import settle
from launcher.runs.launch.wanted_machine import Wanted
from launcher.runs.rented.api_key_guard import check_key_is_not_sent
from launcher.runs.rented.rental_names import name_findings
from launcher.runs.rented.rented_runs import kept_idle
from launcher.values.plan import Finding, Plan


def agree(wanted: Wanted, view: View) -> tuple[RentalChoice, Plan]:
    """Return the suitable offers for a launch, and the expected plan, once it passes the gate and the cost is accepted.

    Raises RefusedError for a plan that cannot work, a limit that is missing or too small, and a declined
    price; UsageError for a job that contains the user's provider key; HostError if the service does not
    answer. No machine is rented in these cases.
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
        stage.text = f"{len(offered)} types, {len(choice.found)} fit, {free or 'none'} of them free"
    settle(wrong, view)
    facts = expected(host, choice)
    plan = wanted.plan_for(choice.first.profile, facts)
    view.head(plan)
    found = [
        *cards.findings(wanted.gpus, plan, host, facts),
        *backend_of(host).planning.check(plan, facts, host, resolve.wheels(), resolve.cards()),
    ]
    settle(found, view)
    if (note := backend_of(host).running.first_note()) is not None:
        view.note(f"{host.name}: {note}")
    for finding in choice.findings:
        view.finding(finding)
    for words in kept_idle(host.name):
        view.note(words)
    if not wanted.is_sure:
        _confirm(choice, view)
    return choice, plan


def _confirm(choice: RentalChoice, view: View) -> None:
    """Ask the user to accept the largest cost.

    Raises RefusedError if the user declines. After an interrupt, note that nothing was rented.
    """
    try:
        choice.cost.confirm(view.agrees, "nothing was rented")
    except RefusedError:
        raise
    except BaseException:  # an interrupt, or the end of the input
        view.note("nothing was rented")
        raise


def preview_rental(resolved: Resolved, *, is_sure: bool) -> tuple[RentalChoice | None, tuple[Finding, ...]]:
    """Return the rental that a launch would make, and its findings.

    If exactly one profile is named and no machine can be rented for it, the rental is None, and the refusal is
    a finding. Otherwise raises RefusedError. Raises HostError.
    """
    host = resolved.host
    try:
        check_limited(host)
        offered = offers(host)
        wrong = name_findings(host, settings_of(host), offered)
        choice = choose(host, resolved.profiles, resolved.gpus, resolved.job, offered)
    except RefusedError as error:
        if len(resolved.profiles) != 1:
            raise
        return None, (Finding(level="refuse", code="not-rentable", message=str(error)),)
    found = [*choice.findings, *wrong]
    try:
        choice.candidates()
    except CardBusyError as error:
        found += [] if wrong else [Finding(level="refuse", code="no-capacity", message=str(error))]
    asked = None if is_sure else choice.cost.question
    return choice, (*found, *([asked] if asked is not None else []))


def choice_for(resolved: Resolved) -> RentalChoice:
    """Return the rental that a request would make. Raises HostError or RefusedError."""
    check_limited(resolved.host)
    return choose(resolved.host, resolved.profiles, resolved.gpus, resolved.job, offers(resolved.host))
