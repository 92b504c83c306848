"""`offers`, `hosts`, `probe` and `profile` with --json."""

from __future__ import annotations

from typing import Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.transport.persistent_connection import HeldState
from launcher.values.facts import Facts
from launcher.values.precision import Precision
from launcher.values.profile import Profile


class OfferRow(Part):
    """A type of instance: its price, the regions that have one free, and the profile of its card, null if none names it."""

    type: str
    title: str
    card: str
    cards: int
    memory_gb: float | None
    cents_per_hour: int
    regions: list[str]
    vcpus: int
    ram_gb: int
    disk_gb: int
    profile: str | None


class Offers(Shape):
    """`launch offers`: what a host's account can rent just now, the cheapest first."""

    kind: Literal["offers"] = "offers"
    host: str
    offers: list[OfferRow]


class HostRow(Part):
    """A host. Without an answer `facts` is null, and `problem` says why.

    `quota` are the hours of an account of Kaggle's, or the price of what would be rented; `facts` are then expectations.
    """

    host: str
    profile: str | None
    problem: str | None
    facts: Facts | None
    quota: str | None


class RentalRow(Part):
    """A machine that is rented for a run, as the ledger here knows it; `cents` is what it has cost at most.

    `held`: a process here looks after it. `problem` says what somebody should do about it.
    """

    run: str
    type: str
    region: str
    instance: str | None
    state: str
    since: float
    deadline: float
    cents_per_hour: int
    cents: int
    held: bool
    past: bool
    problem: str | None


class Hosts(Shape):
    """`launch hosts`; `aliases` are names of ~/.ssh/config that were not asked.

    `connections` are held for the next command; with `--close` they were, and nothing else is looked at. `rentals` may cost something just now; `unreadable` are files of the ledger that cannot be read, which may hold others.
    """

    kind: Literal["hosts"] = "hosts"
    hosts: list[HostRow]
    aliases: list[str]
    connections: list[HeldState]
    rentals: list[RentalRow]
    unreadable: list[str]


class Probe(Facts):
    """`launch probe`: the facts of a host, and the profile that its card has.

    Those of an account of Kaggle's are expectations, and `quota` are its hours.
    """

    version: Literal[1] = 1
    kind: Literal["probe"] = "probe"
    host: str
    profile: str | None
    quota: str | None = None


class Profiles(Shape):
    """`launch profile list`."""

    kind: Literal["profiles"] = "profiles"
    profiles: list[Profile]


class ProfileShown(Shape):
    """`launch profile show`: a card, what it can, and its precisions for LoRA in the order in which they are tried."""

    kind: Literal["profile"] = "profile"
    profile: Profile
    can: dict[str, bool]
    ladder: list[Precision]
