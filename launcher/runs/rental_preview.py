"""What would be rented for a request, with its price and what speaks against it. Nothing is rented."""

from __future__ import annotations

from launcher.errors import CardBusyError, RefusedError
from launcher.planning.lambda_machines import expected_facts
from launcher.runs.rental_choice import (
    RentalChoice,
    check_limited,
    choose,
    home_finding,
    offers,
    price_finding,
    question,
    settings_of,
)
from launcher.runs.rental_names import name_findings
from launcher.runs.resolved_request import Resolved
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Finding


def preview_rental(resolved: Resolved, *, is_sure: bool) -> tuple[RentalChoice | None, tuple[Finding, ...]]:
    """Return what would be rented, and what speaks against it; None if nothing can be for the one profile that is named.

    Raises HostError, and RefusedError if the profile hangs on the account.
    """
    try:
        check_limited(resolved.host)
        offered = offers(resolved.host)
        wrong = name_findings(resolved.host, settings_of(resolved.host), offered)
        choice = choose(resolved.host, resolved.profiles, resolved.gpus, resolved.job, offered)
    except RefusedError as error:
        if len(resolved.profiles) != 1:
            raise
        return None, (Finding(level="refuse", code="not-rentable", message=str(error)),)
    found = [home_finding(choice), price_finding(choice), *wrong]
    try:
        choice.candidates()
    except CardBusyError as error:
        found += [] if wrong else [Finding(level="refuse", code="no-capacity", message=str(error))]
    asked = None if is_sure else question(choice)
    return choice, (*found, *([asked] if asked is not None else []))


def choice_for(resolved: Resolved) -> RentalChoice:
    """Return what would be rented. Raises HostError or RefusedError."""
    check_limited(resolved.host)
    return choose(resolved.host, resolved.profiles, resolved.gpus, resolved.job, offers(resolved.host))


def expected(host: Host, choice: RentalChoice) -> Facts:
    """Return what is expected of the machine that is planned for."""
    return expected_facts(host, choice.first)
