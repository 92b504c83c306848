"""`--json` output of `offers`, `hosts`, `probe`, `doctor` and `profile`."""

from __future__ import annotations

from typing import Literal

from launcher.cli.json_output.json_shape import Part, Shape
from launcher.transport.persistent_connection import PersistentState
from launcher.values.facts import Facts
from launcher.values.precision import Precision
from launcher.values.prerequisite import Prerequisite
from launcher.values.profile import Profile


class OfferRow(Part):
    """An instance type: its price, the regions with free instances, and the profile of its card, null if none matches."""

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
    """`launch offers`: the instance types of a host's account, the cheapest first."""

    kind: Literal["offers"] = "offers"
    host: str
    offers: list[OfferRow]


class HostRow(Part):
    """A host. If it does not answer, `facts` is null and `problem` is the reason.

    `quota` is the hours of a Kaggle account, or the price of the machine to rent. With a `quota`, `facts` are expectations.
    """

    host: str
    profile: str | None
    problem: str | None
    facts: Facts | None
    quota: str | None


class RentalRow(Part):
    """A machine rented for a run, by the local ledger. `cents` is its maximum cost so far.

    `held`: a process on this computer manages the rental. `problem` names the problem and the command to type.
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
    """`launch hosts`. `aliases` are names of ~/.ssh/config whose hosts were not asked.

    `connections` are kept open for the next command. With `--close`, they are the closed connections, and the other lists
    are empty. `rentals` may cost money now. `unreadable` are unreadable ledger files, which may contain more rentals.
    """

    kind: Literal["hosts"] = "hosts"
    hosts: list[HostRow]
    aliases: list[str]
    connections: list[PersistentState]
    rentals: list[RentalRow]
    unreadable: list[str]


class Probe(Facts):
    """`launch probe`: the facts of a host, and the profile of its card.

    For a Kaggle account, the facts are expectations, and `quota` is its hours.
    """

    version: Literal[1] = 1
    kind: Literal["probe"] = "probe"
    host: str
    profile: str | None
    quota: str | None = None


class ReadinessRow(Part):
    """A host of `launch doctor`. `ready`: nothing is missing. `summary` is its cards and software in one line, or null."""

    host: str
    ready: bool
    summary: str | None
    rows: list[Prerequisite]


class Doctor(Shape):
    """`launch doctor`: the rows of this computer, and those of each host. `ready`: nothing is missing on any of them.

    With a host, `computer` is empty.
    """

    kind: Literal["doctor"] = "doctor"
    ready: bool
    computer: list[Prerequisite]
    hosts: list[ReadinessRow]


class Profiles(Shape):
    """`launch profile list`."""

    kind: Literal["profiles"] = "profiles"
    profiles: list[Profile]


class ProfileShown(Shape):
    """`launch profile show`: a card, its capabilities, and its precisions for LoRA in the order of trial."""

    kind: Literal["profile"] = "profile"
    profile: Profile
    can: dict[str, bool]
    ladder: list[Precision]
