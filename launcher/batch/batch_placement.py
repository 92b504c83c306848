"""Decide which items of a batch start now and where, and why the others wait. A pure function.

Items are taken in order. A busy, silent or excluded host delays only the items that need it:

    decide(items, places, going=3, most=8)  ->  Decision(begin=((item, "lab"),), waits={7: "waits for a card on l40s"})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from launcher.batch.queued_item import Item

FAILURES = 5
"""This many items in a row that fail before their first step indicate a fault of the host."""


class HostAvailability(NamedTuple):
    """The availability of a host. `closed` is the reason why no item can start there now, or None.

    `going` is the number of the batch's runs there. `most` is the maximum of that number: 1 on a host that
    does not allocate cards.
    """

    closed: str | None = None
    going: int = 0
    most: int | None = None


class Decision(NamedTuple):
    """The items to start, each with a host, and the reason why each other item waits, by its number."""

    begin: tuple[tuple[Item, str], ...]
    waits: Mapping[int, str]


def decide(
    items: Iterable[Item], places: Mapping[str, HostAvailability], *, going: int, most: int | None
) -> Decision:
    """Choose the items to start: each on its first open host, and at most one per host.

    A second one must wait, because a start changes the free cards of its host.
    """
    begin: list[tuple[Item, str]] = []
    waits: dict[int, str] = {}
    taken: set[str] = set()
    for item in items:
        if most is not None and going + len(begin) >= most:
            runs = "1 run" if most == 1 else f"{most} runs"
            waits[item.number] = f"waits for one of {runs} to end (max_parallel)"
            continue
        hosts = [host for host in item.hosts if host not in item.tried]
        chosen = next((host for host in hosts if host not in taken and _is_open(places[host])), None)
        if chosen is not None:
            begin.append((item, chosen))
            taken.add(chosen)
            continue
        waits[item.number] = "; ".join(dict.fromkeys(_why(host, places[host]) for host in hosts))
    return Decision(tuple(begin), waits)


def _is_open(place: HostAvailability) -> bool:
    return place.closed is None and (place.most is None or place.going < place.most)


def _why(host: str, place: HostAvailability) -> str:
    if place.closed is not None:
        return place.closed
    if not _is_open(place):
        return f"waits for a run on {host} to end"
    return f"waits for another launch on {host}"
