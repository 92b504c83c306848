"""The values of renting by the hour: offers, instances, launch requests and costs.

Nothing here is specific to one provider. A *rental* is the ledger's entry for one launch; an *instance* is an
entry in the provider's list. The rental's nonce connects them: the instance carries it in its name and in a
tag.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import Field

from launcher.values.base import Record, StrictModel

NAME_START = "launch-"
DOWNLOAD_RESERVE_S, HOME_PART = 600.0, 0.1
"""The time reserved for downloads at the end of a rental: its seconds, and its largest share of the rental."""
TAGS = ("launch:run", "launch:nonce", "launch:client", "launch:deadline")
NAME_CHARACTERS, TAG_CHARACTERS = 64, 128
Cents = Annotated[int, Field(ge=0)]


class InstanceOffer(StrictModel):
    """An instance type, its price, and the regions with a free instance.

    `memory_gb` is per card, None if unknown.
    """

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
        """The price per hour, e.g. `$1.29/h`."""
        return f"{dollars(self.cents_per_hour)}/h"


class InstanceState(StrEnum):
    """The state of an instance, as the provider reports it.

    UNKNOWN stands for a state name that this version does not know. It never counts as a success.
    """

    BOOTING = "booting"
    ACTIVE = "active"
    UNHEALTHY = "unhealthy"
    ENDING = "ending"
    PREEMPTED = "preempted"
    GONE = "gone"
    UNKNOWN = "unknown"


class Instance(NamedTuple):
    """An instance in the provider's list.

    `word` is the provider's name for its state; `nonce` is empty if it has none.
    """

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
        """Whether it may still cost something: in every state but GONE."""
        return self.state is not InstanceState.GONE

    @property
    def is_ready(self) -> bool:
        """Whether a login is possible."""
        return self.state is InstanceState.ACTIVE and self.ip is not None

    @property
    def is_launchers(self) -> bool:
        """Whether its name or tag shows that a launcher created it, on this or another client."""
        return bool(self.nonce)


class LaunchOptions(StrictModel):
    """The options of a new instance.

    `user_data` may hold a private key, so no `repr` and no ledger contains it.
    """

    ssh_key: str
    image: str | None = None
    file_systems: tuple[str, ...] = ()
    firewalls: tuple[str, ...] = ()
    user_data: str = Field(default="", repr=False)


class Intent(Record):
    """The ledger entry written before an instance is launched. Times are in seconds since 1970."""

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
        """The instance's name. It ends with the nonce."""
        most = NAME_CHARACTERS - len(NAME_START) - len(self.nonce) - 1
        return f"{NAME_START}{self.run[:most].rstrip('-')}-{self.nonce}"

    @property
    def tags(self) -> dict[str, str]:
        """The instance's tags."""
        values = (self.run, self.nonce, self.client[:TAG_CHARACTERS], f"{self.deadline:.0f}")
        return dict(zip(TAGS, values, strict=True))


class RentalState(StrEnum):
    """The stage of a rental.

    REFUSED: the provider refused it. UNSEEN: no answer came, and no instance appeared in time. DISMISSED: the
    user wants no more messages about it; its end is not confirmed.
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
"""The reason for the termination of an instance that the user named."""
ELSEWHERE = "it was ended elsewhere, or taken away"
"""The message about a machine that ended, or left the provider's list, without launcher's request."""


class RentalReason(StrEnum):
    """Why a rental failed. It is the `reason` of a ServiceError."""

    BOOT_TIMEOUT = "boot-timeout"
    NO_LOGIN = "no-login"
    PREEMPTED = "preempted"
    GONE = "gone"
    LIMIT = "limit"
    PRICE = "price"
    STILL_BILLED = "still-billed"


OPEN = (RentalState.INTENT, RentalState.LAUNCHED, RentalState.READY, RentalState.ENDING)


class ExtraInstance(NamedTuple):
    """An extra instance of the same rental. launcher terminates it.

    `cents` is its cost, None until it is gone.
    """

    id: str
    cents: int | None = None


class Rental(Record):
    """One launch: its intent and its outcome. `cents` is its maximum cost, set once it has ended.

    `missing_since` is the time of the first search that found neither an instance nor a process that holds
    the rental.
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
    extras: tuple[ExtraInstance, ...] = ()

    @property
    def nonce(self) -> str:
        """The nonce that its instance carries."""
        return self.intent.nonce

    @property
    def price(self) -> str:
        """The price per hour, e.g. `$1.29/h`."""
        return f"{dollars(self.intent.cents_per_hour)}/h"

    @property
    def is_open(self) -> bool:
        """Whether it may still cost something, according to the ledger."""
        return self.state in OPEN or any(extra.cents is None for extra in self.extras)

    def is_past(self, now: float) -> bool:
        """Whether it is open beyond its limit."""
        return self.is_open and now >= self.intent.deadline

    @property
    def download_reserve_s(self) -> float:
        """The seconds between the stop of its run and the limit, which leave time for downloads."""
        return download_reserve_s(self.intent.deadline - self.intent.time)

    @property
    def since(self) -> float:
        """The start of the billed time: the intent.

        A launch without an answer may have been accepted at once.
        """
        return self.intent.time

    def time_cents(self, now: float) -> int:
        """Return the maximum cost of one of its instances until `now`, in cents."""
        return cents(now - self.since, self.intent.cents_per_hour)

    @property
    def largest(self) -> int:
        """The maximum cost at its limit, in cents.

        A launch without an answer counts as if it had succeeded.
        """
        return max(self.cents_at(self.intent.deadline), self.time_cents(self.intent.deadline))

    def cents_at(self, now: float) -> int:
        """Return its maximum cost until `now` in cents, with its extras."""
        is_billed = self.state in (RentalState.LAUNCHED, RentalState.READY, RentalState.ENDING)
        own = self.cents if self.cents is not None else self.time_cents(now) if is_billed else 0
        return own + sum(
            self.time_cents(now) if extra.cents is None else extra.cents for extra in self.extras
        )


def download_reserve_s(limit_s: float) -> float:
    """Return the seconds reserved for downloads at the end of a rental."""
    return min(DOWNLOAD_RESERVE_S, HOME_PART * max(0.0, limit_s))


def run_cents(rentals: Iterable[Rental], run: str, now: float) -> int:
    """Return the maximum cost until `now` of all launches for a run, in cents.

    A launch may have been repeated.
    """
    return sum(rental.cents_at(now) for rental in rentals if rental.intent.run == run)


def cents(seconds: float, cents_per_hour: int) -> int:
    """Return the price of a duration in cents.

    A started minute counts in full, and a part of a cent counts as one.
    """
    minutes = math.ceil(max(0.0, seconds) / 60 - 1e-6)
    return -(-minutes * cents_per_hour // 60)


def dollars(amount: int) -> str:
    """Return cents as text, e.g. `$10.32`."""
    return f"${amount / 100:,.2f}"


def minutes_text(minutes: float) -> str:
    """Return a duration in whole minutes as text, e.g. `4 minutes`."""
    whole = round(minutes)
    return "less than a minute" if whole < 1 else f"{whole} minute{'s' * (whole != 1)}"


def nonce_in(name: str) -> str:
    """Return the nonce at the end of an instance name. Empty if launcher did not create the name."""
    return name.rpartition("-")[2] if name.startswith(NAME_START) else ""
