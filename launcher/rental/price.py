"""Price and limits of a rental: what will do, what it costs at most, both in words, and the question above `confirm_above`.

Launch, resume, move, batch and `launch extend` all say and ask it from here. Costs are in cents. Example: with max_hours = 8,
gpu_1x_a100 at $1.99 an hour costs at most $15.92, which is asked about above confirm_above = 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from launcher.errors import CardBusyError, RefusedError
from launcher.rental.offers import OfferFilter, fitting
from launcher.rental.rental_settings import LONGEST_HOURS, RentalSettings
from launcher.rental.renting import InstanceOffer, cents, dollars, home_s, minutes_text
from launcher.values.plan import Finding
from launcher.values.profile import Profile


class Expected(NamedTuple):
    """How long a rental is expected to last, and how one knows."""

    hours: float
    why: str


class Cost(NamedTuple):
    """The most that something may cost, and above how many dollars a person agrees to it first.

    `of` is what costs it and `about` says more of it; `command` agrees without a question, and `lower` says what limits it.
    """

    of: str
    largest: int
    confirm_above: float
    command: str
    lower: str = "a lower max_hours or max_cost limits it"
    about: str = ""

    @property
    def question(self) -> Finding | None:
        """What a person is to agree to; None if it is small."""
        if self.largest <= round(self.confirm_above * 100, 6):
            return None
        more = f"which is more than confirm_above = {self.confirm_above:g}{self.about}"
        mend = f"{self.command} agrees, as y does at a terminal; {self.lower}"
        message = f"{self.of} may cost {dollars(self.largest)}, {more}"
        return Finding(level="refuse", code="costs-much", message=message, mend=mend)

    def confirm(self, agrees: Callable[[str], bool | None], undone: str) -> None:
        """Ask a person, if it is not small. Raises RefusedError, which says what is `undone`, for no and without a terminal."""
        if (asked := self.question) is None:
            return
        answer = agrees(asked.message)
        if answer is None:
            raise RefusedError(f"{undone}: {asked.message}\n  {asked.mend}")
        if not answer:
            raise RefusedError(f"{undone}, as you answered\n  {self.lower}")


class Priced(NamedTuple):
    """A type that will do, the profile of all its cards, how long it may be rented, and its costs.

    `expected` is None if nothing is expected. The end itself takes minutes too, which are not in `largest`.
    """

    offer: InstanceOffer
    profile: Profile
    limit_s: float
    largest: int
    expected: int | None = None
    why_expected: str = ""

    @property
    def boot_s(self) -> float:
        """How long it may take to boot: one with a single card is quicker."""
        return 900.0 if self.offer.cards <= 1 else 1800.0

    def lasting(self, expected: Expected | None) -> Priced:
        """Return the same with what is expected of it."""
        if expected is None:
            return self
        cost = cents(min(expected.hours * 3600, self.limit_s), self.offer.cents_per_hour)
        return self._replace(expected=cost, why_expected=expected.why)

    @property
    def most_words(self) -> str:
        """What it costs at most, in a few words."""
        return f"at most {dollars(self.largest)} in {hours_text(self.limit_s)}"

    @property
    def cost_words(self) -> str:
        """What it is expected to cost too, if that is known."""
        expected = (
            "" if self.expected is None else f"expected {dollars(self.expected)} ({self.why_expected}), "
        )
        return f"{expected}{self.most_words}"


class Candidate(NamedTuple):
    """A type in a region that has one free."""

    priced: Priced
    region: str


class RentalChoice(NamedTuple):
    """What will do for a run at a host, the first one to try first. There is at least one."""

    host: str
    settings: RentalSettings
    found: tuple[Priced, ...]

    @property
    def first(self) -> Priced:
        """What is planned for: the first one that is free, else the first one."""
        return next((one for one in self.found if self.regions_of(one)), self.found[0])

    @property
    def cost(self) -> Cost:
        """The most that this may cost, whichever of them is rented."""
        first, largest = self.first, max(one.largest for one in self.found)
        about = f" ({first.offer.type} at {first.offer.price}, {hours_text(first.limit_s)} at most)"
        return Cost(f"{self.host}: this", largest, self.settings.confirm_above, "launch --yes …", about=about)

    @property
    def free(self) -> tuple[Candidate, ...]:
        """What to try, in that order, in each region that has one free."""
        return tuple(Candidate(one, region) for one in self.found for region in self.regions_of(one))

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the same. Raises CardBusyError if all are rented out just now."""
        if self.free:
            return self.free
        names, regions = ", ".join(one.offer.type for one in self.found), self.settings.region
        where = f" in {', '.join(regions)}" if regions else ""
        others = sorted({name for one in self.found for name in one.offer.regions})
        elsewhere = f"; free in {', '.join(others)}" if regions and others else ""
        raise CardBusyError(
            f"{self.host}: none free of {names}{where}{elsewhere}\n  what is free   launch offers     or wait for one   --wait 30m",
            f"no capacity of {names}",
        )

    def profile_of(self, type_name: str) -> Profile:
        """Return the profile of a type's cards. Raises StopIteration for a type that will not do."""
        return next(one.profile for one in self.found if one.offer.type == type_name)

    def renewed(self, offered: Iterable[InstanceOffer]) -> RentalChoice:
        """Return the same by new offers: where a type is free now. One that costs more than was agreed to is free nowhere."""
        now = {offer.type: offer for offer in offered}
        return self._replace(found=tuple(one._replace(offer=_renewed(one.offer, now)) for one in self.found))

    def regions_of(self, one: Priced) -> Sequence[str]:
        """Return the regions that have one free, in the order in which they are tried."""
        return _regions_of(one.offer, self.settings.region)

    @property
    def words(self) -> str:
        """What is rented, its price an hour, and what it costs, expected and at most, in one line."""
        first, largest = self.first, self.cost.largest
        unknown = "how long it takes is not known, " if first.expected is None else ""
        words = f"{self._where}: {unknown}{first.cost_words}"
        others = [one.offer for one in self.found if one.offer.type != first.offer.type]
        if others:
            words += f"; else {', '.join(f'{offer.type} at {offer.price}' for offer in others)}"
            if largest > first.largest:
                words += f", at most {dollars(largest)}"
        return words

    @property
    def offer_words(self) -> str:
        """What would be rented for any job, and what it costs at most, in a few words."""
        return f"expected of {self._where}, {self.first.most_words}"

    @property
    def _where(self) -> str:
        regions = self.regions_of(self.first)
        where = f" in {regions[0]}" if regions else ", none free just now,"
        return f"{self.first.offer.type}{where} at {self.first.offer.price}"

    @property
    def findings(self) -> tuple[Finding, Finding]:
        """When a run on what is rented is ended at the latest, and why; and the price: as notes of the gate."""
        minutes = minutes_text(home_s(self.first.limit_s) / 60)
        home = (
            f"{self.host}: the last {minutes} before the limit are for bringing files home: a run that still goes on is asked to save and stop then;"
            " what is not here at the limit is lost with the machine, and named"
        )
        return (
            Finding(level="note", code="home", message=home),
            Finding(level="note", code="price", message=f"{self.host}: {self.words}"),
        )


def priced(
    host: str,
    settings: RentalSettings,
    offers: Iterable[InstanceOffer],
    wish: OfferFilter,
    expected: Callable[[Profile], Expected | None] = lambda _profile: None,
) -> RentalChoice:
    """Return the types that will do at a host, the first one to try first, whether one is free or not.

    Without a profile and without types they are those with the cards of the cheapest that is free: nobody asked for more.
    The settings have a limit. Raises UnknownNameError for a type that is not offered, RefusedError, with what to write
    instead, if nothing fits or the limits are too small.
    """
    pairs = fitting(host, offers, wish)
    found = [_priced(offer, profile, settings) for offer, profile in pairs]
    affordable = [one for one in found if one.limit_s >= one.boot_s]
    if not affordable:
        raise _too_small(host, found[0], settings)
    if not wish.named and not wish.types:
        free = [one for one in affordable if _regions_of(one.offer, settings.region)]
        first = (free or affordable)[0].profile
        affordable = [one for one in affordable if one.profile == first]
    return RentalChoice(host, settings, tuple(one.lasting(expected(one.profile)) for one in affordable))


def hours_text(seconds: float) -> str:
    """Return a length of time as a price is for it, e.g. `8 h`, `45 min` or `5 h 1 min`."""
    minutes = round(seconds / 60)
    if minutes < 120 and minutes % 60:
        return f"{minutes} min"
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if left else f"{hours} h"


def _regions_of(offer: InstanceOffer, preferred: Sequence[str]) -> Sequence[str]:
    return [name for name in preferred if name in offer.regions] if preferred else offer.regions


def _renewed(offer: InstanceOffer, offered: Mapping[str, InstanceOffer]) -> InstanceOffer:
    now = offered.get(offer.type)
    if now is None or now.cents_per_hour > offer.cents_per_hour:
        return offer.model_copy(update={"regions": ()})
    return now


def _priced(offer: InstanceOffer, profile: Profile, settings: RentalSettings) -> Priced:
    """Return what a type costs until the limit, which is in whole minutes, as it is billed."""
    hours = settings.max_hours or LONGEST_HOURS
    if settings.max_cents is not None:
        hours = min(hours, settings.max_cents / offer.cents_per_hour)
    limit_s = int(hours * 60 + 1e-6) * 60.0
    return Priced(offer, profile, limit_s, cents(limit_s, offer.cents_per_hour))


def _too_small(host: str, one: Priced, settings: RentalSettings) -> RefusedError:
    written = [] if settings.max_hours is None else [f"max_hours = {settings.max_hours:g}"]
    written += [] if settings.max_cost is None else [f"max_cost = {settings.max_cost:g}"]
    return RefusedError(
        f"{host}: {' and '.join(written)} allows {minutes_text(one.limit_s / 60)} of {one.offer.type} at {one.offer.price}, "
        f"which may take {one.boot_s / 60:.0f} to boot\n  nothing was rented; raise the limit, or name a cheaper type: launch offers"
    )
