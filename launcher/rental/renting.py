"""Renting a machine by the hour: what is offered, what was asked for, what the provider lists, and what it costs.

Nothing here is one provider's. A *rental* is our record of one launch; an *instance* is what the provider lists. They are
matched by the rental's nonce, which the instance carries in its name and in a tag.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import Field

from launcher.values.base import Record, Written

NAME_START = "launch-"
HOME_S, HOME_PART = 600.0, 0.1
"""The end of each rental is for bringing home what its run made: so long, and at most this part of it."""
TAGS = ("launch:run", "launch:nonce", "launch:client", "launch:deadline")
NAME_CHARACTERS, TAG_CHARACTERS = 64, 128
Cents = Annotated[int, Field(ge=0)]


class InstanceOffer(Written):
    """A type of instance, its price, and the regions that have one free. `memory_gb` is that of one card, None if unknown."""

    type: str
    title: str
    card: str
    cards: Annotated[int, Field(ge=0)]
    memory_gb: float | None
    cents_per_hour: Annotated[int, Field(gt=0)]
    regions: tuple[str, ...] = ()
    vcpus: int = 0
    ram_gb: int = 0
    disk_gb: int = 0

    @property
    def price(self) -> str:
        """What an hour costs, e.g. `$1.29/h`."""
        return f"{dollars(self.cents_per_hour)}/h"


class InstanceState(StrEnum):
    """What an instance does, as far as the provider says. UNKNOWN is a word of its that we do not know: never a success."""

    BOOTING = "booting"
    ACTIVE = "active"
    UNHEALTHY = "unhealthy"
    ENDING = "ending"
    PREEMPTED = "preempted"
    GONE = "gone"
    UNKNOWN = "unknown"


class Instance(NamedTuple):
    """An instance that a provider lists. `word` is the provider's own for its state; `nonce` is empty if it carries none."""

    id: str
    state: InstanceState
    word: str
    nonce: str = ""
    name: str = ""
    ip: str | None = None
    region: str = ""
    type: str = ""
    cents_per_hour: int | None = None

    @property
    def is_billed(self) -> bool:
        """Whether it may still cost something: everything but what the provider says is gone."""
        return self.state is not InstanceState.GONE

    @property
    def is_ready(self) -> bool:
        """Whether it can be logged in to."""
        return self.state is InstanceState.ACTIVE and self.ip is not None

    @property
    def is_launchers(self) -> bool:
        """Whether its name or a tag says that a launcher made it, this one or another client's."""
        return bool(self.nonce)


class Setup(Written):
    """What an instance is made with. `user_data` may hold a private key, so it is in no `repr` and no ledger."""

    ssh_key: str
    image: str | None = None
    file_systems: tuple[str, ...] = ()
    firewalls: tuple[str, ...] = ()
    user_data: str = Field(default="", repr=False)


class Intent(Record):
    """What is on disk before an instance is launched. Times are in seconds since 1970."""

    provider: str
    account: str
    run: str
    nonce: str
    client: str
    type: str
    region: str
    cents_per_hour: Cents
    time: float
    deadline: float

    @property
    def name(self) -> str:
        """The instance's name, which ends with the nonce."""
        most = NAME_CHARACTERS - len(NAME_START) - len(self.nonce) - 1
        return f"{NAME_START}{self.run[:most].rstrip('-')}-{self.nonce}"

    @property
    def tags(self) -> dict[str, str]:
        """The instance's tags."""
        values = (self.run, self.nonce, self.client[:TAG_CHARACTERS], f"{self.deadline:.0f}")
        return dict(zip(TAGS, values, strict=True))


class RentalState(StrEnum):
    """How far a rental is. REFUSED: the provider said no. UNSEEN: no answer, and no instance of it in the time it had.

    DISMISSED: the user does not want to hear of it any more; whether it has ended nobody here knows.
    """

    INTENT = "intent"
    LAUNCHED = "launched"
    READY = "ready"
    ENDING = "ending"
    ENDED = "ended"
    REFUSED = "refused"
    UNSEEN = "unseen"
    DISMISSED = "dismissed"


NAMED = "named by you"
"""Why an instance that the user names is ended."""
ELSEWHERE = "it was ended elsewhere, or taken away"
"""What is said of a machine that the provider ends, or lists no more, without us."""


class RentalReason(StrEnum):
    """Why a rental came to nothing. It is the `reason` of a ServiceError."""

    BOOT_TIMEOUT = "boot-timeout"
    NO_LOGIN = "no-login"
    PREEMPTED = "preempted"
    GONE = "gone"
    LIMIT = "limit"
    PRICE = "price"
    STILL_BILLED = "still-billed"


OPEN = (RentalState.INTENT, RentalState.LAUNCHED, RentalState.READY, RentalState.ENDING)


class Extra(NamedTuple):
    """Another instance of the same rental: it is ended, and `cents` is what it cost; None until it has gone."""

    id: str
    cents: int | None = None


class Rental(Record):
    """One launch: its intent, and what became of it. `cents` is what it cost at most, once it has ended.

    `missing_since` is when it was first looked for without finding an instance of it or a process that holds it.
    """

    intent: Intent
    state: RentalState = RentalState.INTENT
    instance: str | None = None
    launched: float | None = None
    ready: float | None = None
    ended: float | None = None
    missing_since: float | None = None
    cents: Cents | None = None
    why: str = ""
    extras: tuple[Extra, ...] = ()

    @property
    def nonce(self) -> str:
        """The mark that its instance carries."""
        return self.intent.nonce

    @property
    def price(self) -> str:
        """What an hour costs, e.g. `$1.29/h`."""
        return f"{dollars(self.intent.cents_per_hour)}/h"

    @property
    def is_open(self) -> bool:
        """Whether it may still cost something, as far as the ledger knows."""
        return self.state in OPEN or any(extra.cents is None for extra in self.extras)

    def is_past(self, now: float) -> bool:
        """Whether it is open beyond its limit."""
        return self.is_open and now >= self.intent.deadline

    @property
    def home_s(self) -> float:
        """How long before its limit its run stops, so that what it made comes home in time."""
        return home_s(self.intent.deadline - self.intent.time)

    @property
    def since(self) -> float:
        """Since when it is counted: the intent, since a launch whose answer is lost may have been accepted at once."""
        return self.intent.time

    def time_cents(self, now: float) -> int:
        """Return what one instance of it costs at most until a moment."""
        return cents(now - self.since, self.intent.cents_per_hour)

    @property
    def largest(self) -> int:
        """What it may have cost at its limit, also one of which nobody knows yet whether it began."""
        return max(self.cents_at(self.intent.deadline), self.time_cents(self.intent.deadline))

    def cents_at(self, now: float) -> int:
        """Return what it has cost at most until a moment, with its extras."""
        is_billed = self.state in (RentalState.LAUNCHED, RentalState.READY, RentalState.ENDING)
        own = self.cents if self.cents is not None else self.time_cents(now) if is_billed else 0
        return own + sum(
            self.time_cents(now) if extra.cents is None else extra.cents for extra in self.extras
        )


def home_s(limit_s: float) -> float:
    """Return how long the end of a rental is that is for bringing home."""
    return min(HOME_S, HOME_PART * max(0.0, limit_s))


def run_cents(rentals: Iterable[Rental], run: str, now: float) -> int:
    """Return what all launches for a run have cost at most until a moment: one may have been made again."""
    return sum(rental.cents_at(now) for rental in rentals if rental.intent.run == run)


def cents(seconds: float, cents_per_hour: int) -> int:
    """Return the price of a time; each minute begun counts, and a part of a cent is a cent."""
    minutes = math.ceil(max(0.0, seconds) / 60 - 1e-6)
    return -(-minutes * cents_per_hour // 60)


def dollars(amount: int) -> str:
    """Return cents as text, e.g. `$10.32`."""
    return f"${amount / 100:,.2f}"


def minutes_text(minutes: float) -> str:
    """Return a time in whole minutes, e.g. `4 minutes`."""
    whole = round(minutes)
    return "less than a minute" if whole < 1 else f"{whole} minute{'s' * (whole != 1)}"


def nonce_in(name: str) -> str:
    """Return the nonce at the end of the name of an instance of ours; empty if it is not such a name."""
    return name.rpartition("-")[2] if name.startswith(NAME_START) else ""
