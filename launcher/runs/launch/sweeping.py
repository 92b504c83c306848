"""Sweep a host: end and remove launcher's leftovers that no run needs; list the rest and leave it alone."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.backends.base.runtime import RunResource
from launcher.backends.runtimes import Runtime
from launcher.planning.placement import release_advice, strangers_on
from launcher.transport.client.host_client import HostClient
from launcher.values.facts import Facts
from launcher.values.reported.answers import CleanupResult, Sweep

KEPT_S = 3600.0
"""How long a launch keeps the container of an ended run for inspection, in seconds."""
LEAVING_S = 60.0
"""How long a container may run after its run's end before it counts as left over, in seconds."""


def sweep(
    client: HostClient, runtimes: Sequence[Runtime], *, dry_run: bool, kept_s: float = 0.0
) -> list[CleanupResult]:
    """Sweep a host and these runtimes' data on it; return the items found. With `dry_run` nothing is changed.

    A runtime's data of a run that ended less than `kept_s` seconds ago is kept. Raises HostError.
    """
    # List the runtimes' data before the runs: data that appears between the two lists belongs to a new run.
    holdings = [(runtime, holding) for runtime in runtimes for holding in runtime.holdings()]
    found = client.upkeep.sweep({holding.run for _, holding in holdings if holding.run}, dry_run=dry_run)
    dead = [(runtime, holding) for runtime, holding in holdings if _is_dead(holding, found, kept_s)]
    if not dry_run:
        for runtime, holding in dead:
            runtime.discard(holding)
    swept = [
        CleanupResult(
            kind=holding.kind, name=holding.name, run=holding.run, did="removed", why="its run has ended"
        )
        for _, holding in dead
    ]
    return [*found.items, *swept]


def strangers(facts: Facts) -> list[CleanupResult]:
    """Return the processes that hold cards of a host without belonging to a launcher run, with advice on freeing them."""
    return [
        CleanupResult(
            kind="handed-over" if holder.receiver else "stranger",
            name=holder.title,
            run=holder.run,
            did="left",
            why=f"holds GPU {gpu.index}: {release_advice(holder, facts)}",
            receiver=holder.receiver,
        )
        for gpu in facts.gpus
        for holder in strangers_on(gpu)
    ]


def _is_dead(holding: RunResource, found: Sweep, kept_s: float) -> bool:
    if holding.root != found.root or holding.run not in found.ended:
        return False
    age_s = found.ended[holding.run]
    return age_s is None or age_s >= (max(kept_s, LEAVING_S) if holding.is_up else kept_s)


def summary(items: list[CleanupResult]) -> str:
    """Return a one-line summary of a sweep."""
    words = []
    for did in ("ended", "removed"):
        chosen = [item for item in items if item.did == did]
        if chosen:
            more = f", {len(chosen) - 3} more" if len(chosen) > 3 else ""
            words.append(
                f"{did} {len(chosen)} leftover{'s' * (len(chosen) != 1)}: {', '.join(item.title for item in chosen[:3])}{more}"
            )
    return "; ".join(words) or "nothing is left over"
