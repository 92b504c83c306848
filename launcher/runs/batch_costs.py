"""What the items of a batch may cost at most, before it is made: what can never run within its limit is refused then."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcher.errors import HostError, RefusedError, UsageError
from launcher.runs.batch_budget import cents_of, rented_hosts
from launcher.runs.batch_draft import Draft
from launcher.runs.launching import understand
from launcher.runs.lookup import Lookup
from launcher.runs.rental_choice import OffersOnce, choose
from launcher.runs.request import Request
from launcher.values.host import Host
from launcher.values.renting import dollars


def keep_notes(hosts: Iterable[Host]) -> list[str]:
    """Return what is said of each of some hosts whose table has `keep = true`, before a batch rents there."""
    kept = [host.name for host in hosts if host.lambda_cloud is not None and host.lambda_cloud.keep]
    return [
        f"{name}: keep = true in its table: each item's machine is kept after its run and billed until its limit, or until you end it"
        for name in kept
    ]


class Cost(NamedTuple):
    """What an item may cost at most on a host, in cents, and whether its machine there is kept after its run."""

    item: str
    host: str
    cents: int
    keeps: bool


def costs_of(drafts: Sequence[Draft]) -> list[Cost]:
    """Return what items may cost on each of their hosts, if machines are rented on all of those. Each account is asked once.

    Of what cannot be asked just now, or is refused for another reason, nothing is said: the launch says that.
    """
    known = {host.name: host for host in rented_hosts(name for draft in drafts for name in draft.hosts)}
    asked, answers, lookup = OffersOnce(), dict[object, int | None](), Lookup()
    found: list[Cost] = []
    for draft in drafts:
        costs = []
        for host in [known[name] for name in draft.hosts if name in known]:
            question = host.name, draft.request.profile, draft.request.gpus
            if question not in answers:
                answers[question] = _most_of(draft.request._replace(host=host.name), host, asked, lookup)
            if (cents := answers[question]) is not None:
                costs.append(_cost(draft, host, cents))
        found += costs if len(costs) == len(draft.hosts) else []
    return found


def _most_of(request: Request, host: Host, asked: OffersOnce, lookup: Lookup) -> int | None:
    try:
        one = understand(request, lookup)
        return choose(host, one.profiles, one.gpus, one.job, asked.offers(host)).largest
    except (HostError, RefusedError, UsageError):
        return None


def _cost(draft: Draft, host: Host, cents: int) -> Cost:
    return Cost(draft.name, host.name, cents, host.lambda_cloud is not None and host.lambda_cloud.keep)


def together(costs: Iterable[Cost]) -> int:
    """Return what all items may cost together, in cents, each on the dearest of its hosts."""
    most: dict[str, int] = {}
    for one in costs:
        most[one.item] = max(one.cents, most.get(one.item, 0))
    return sum(most.values())


def too_dear(cost: Cost, max_cost: float) -> str | None:
    """Return why an item can never run on a host within a batch's limit; None if it can."""
    if cost.cents <= cents_of(max_cost):
        return None
    return f"{cost.host}: max_cost = {max_cost:g} of the batch, and this item may cost {dollars(cost.cents)}"


def keeps_too_much(costs: Sequence[Cost], max_cost: float) -> str | None:
    """Return why items whose machines are kept can never all run within a batch's limit; None if they can."""
    by_item = _by_item(costs)
    kept = [
        min(found, key=lambda one: one.cents) for found in by_item.values() if all(one.keeps for one in found)
    ]
    cents = sum(one.cents for one in kept)
    if cents <= cents_of(max_cost):
        return None
    return (
        f"{kept[0].host}: keep = true in its table: each machine is billed until its limit, so the {len(kept)} items may cost "
        f"{dollars(cents)} together, and max_cost = {max_cost:g} of the batch\n"
        f"  in its table   keep = false     or another limit   --max-cost {math.ceil(cents / 100)}"
    )


def check_fits(costs: Sequence[Cost], max_cost: float) -> None:
    """Raise RefusedError for items that can never run within a batch's limit: nothing is to be begun then."""
    by_item = _by_item(costs)
    dear = [found[0] for found in by_item.values() if all(too_dear(one, max_cost) for one in found)]
    if dear:
        first, more = dear[0], len(dear) - 1
        least = max(min(one.cents for one in by_item[found.item]) for found in dear)
        others = "" if not more else f" and {more} {'other' if more == 1 else 'others'}"
        raise RefusedError(
            f"nothing was begun: {first.item}{others}: {too_dear(first, max_cost)}\n"
            f"  another limit   --max-cost {math.ceil(least / 100)}"
        )
    if (words := keeps_too_much(costs, max_cost)) is not None:
        raise RefusedError(f"nothing was begun: {words}")


def _by_item(costs: Iterable[Cost]) -> dict[str, list[Cost]]:
    found: dict[str, list[Cost]] = {}
    for one in costs:
        found.setdefault(one.item, []).append(one)
    return found
