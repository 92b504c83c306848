"""The price and limits of a rental: fitting types, maximum cost, and the question above `confirm_above`.

Launch, resume, move, batch and `launch extend` share this module. Costs are in cents. Example: with max_hours
= 8, gpu_1x_a100 at $1.99 an hour costs at most $15.92. With confirm_above = 10 the user must confirm that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from launcher.errors import CardBusyError, RefusedError
from launcher.rental.offers import OfferFilter, fitting
from launcher.rental.rental_settings import LONGEST_HOURS, RentalSettings
from launcher.rental.renting import InstanceOffer, cents, dollars, download_reserve_s, minutes_text
from launcher.values.plan import Finding
from launcher.values.profile import Profile


class Expected(NamedTuple):
    """The expected duration of a rental in hours, and the source of the estimate."""

    hours: float
    why: str


class Cost(NamedTuple):
    """The maximum cost in cents, and the amount in dollars above which the user must confirm it.

    `of` names the item and `about` adds detail. `command` confirms without a question. `lower` explains how
    to limit the cost.
    """

    of: str
    largest: int
    confirm_above: float
    command: str
    lower: str = "a lower max_hours or max_cost limits it"
    about: str = ""

    @property
    def question(self) -> Finding | None:
        """The question for the user, or None if the cost is at most `confirm_above`."""
        if self.largest <= round(self.confirm_above * 100, 6):
            return None
        more = f"which is more than confirm_above = {self.confirm_above:g}{self.about}"
        mend = f"{self.command} accepts the cost, and so does y at a terminal; {self.lower}"
        message = f"{self.of} may cost {dollars(self.largest)}, {more}"
        return Finding(level="refuse", code="costs-much", message=message, mend=mend)

    def confirm(self, agrees: Callable[[str], bool | None], undone: str) -> None:
        """Ask the user, if the cost needs confirmation.

        Raises RefusedError, with `undone` as the outcome, if the user declines or no terminal is available.
        """
        if (asked := self.question) is None:
            return
        answer = agrees(asked.message)
        if answer is None:
            raise RefusedError(f"{undone}: {asked.message}\n  {asked.mend}")
        if not answer:
            raise RefusedError(f"{undone}: you answered no\n  {self.lower}")


class Priced(NamedTuple):
    """A type that fits, the profile of all its cards, its time limit and its costs.

    `expected` is None without an estimate. `largest` leaves out the minutes that termination takes.
    """

    offer: InstanceOffer
    profile: Profile
    limit_s: float
    largest: int
    expected: int | None = None
    why_expected: str = ""

    @property
    def boot_s(self) -> float:
        """The maximum boot time in seconds. A machine with one card boots faster."""
        return 900.0 if self.offer.cards <= 1 else 1800.0

    def lasting(self, expected: Expected | None) -> Priced:
        """Return a copy with an expected cost."""
        if expected is None:
            return self
        cost = cents(min(expected.hours * 3600, self.limit_s), self.offer.cents_per_hour)
        return self._replace(expected=cost, why_expected=expected.why)

    @property
    def most_words(self) -> str:
        """The maximum cost in a few words."""
        return f"at most {dollars(self.largest)} in {hours_text(self.limit_s)}"

    @property
    def cost_words(self) -> str:
        """The maximum cost in a few words, after the expected cost if that is known."""
        expected = (
            "" if self.expected is None else f"expected {dollars(self.expected)} ({self.why_expected}), "
        )
        return f"{expected}{self.most_words}"


class Candidate(NamedTuple):
    """A type, and a region with a free instance of it."""

    priced: Priced
    region: str


class RentalChoice(NamedTuple):
    """The types that fit a run on a host, in the order to try them. The list is never empty."""

    host: str
    settings: RentalSettings
    found: tuple[Priced, ...]

    @property
    def first(self) -> Priced:
        """The type to plan for: the first free one, or the first one if none is free."""
        return next((one for one in self.found if self.regions_of(one)), self.found[0])

    @property
    def cost(self) -> Cost:
        """The maximum cost over all types that may be rented."""
        first, largest = self.first, max(one.largest for one in self.found)
        about = f" ({first.offer.type} at {first.offer.price}, {hours_text(first.limit_s)} at most)"
        return Cost(f"{self.host}: this", largest, self.settings.confirm_above, "launch --yes …", about=about)

    @property
    def free(self) -> tuple[Candidate, ...]:
        """The types to try, in order, once per region with a free instance."""
        return tuple(Candidate(one, region) for one in self.found for region in self.regions_of(one))

    def candidates(self) -> tuple[Candidate, ...]:
        """Return `free`. Raises CardBusyError if it is empty."""
        if self.free:
            return self.free
        names, regions = ", ".join(one.offer.type for one in self.found), self.settings.region
        where = f" in {', '.join(regions)}" if regions else ""
        others = sorted({name for one in self.found for name in one.offer.regions})
        elsewhere = f"; free in {', '.join(others)}" if regions and others else ""
        raise CardBusyError(
            f"{self.host}: none free of {names}{where}{elsewhere}\n  free types   launch offers     or wait for one   --wait 30m",
            f"no capacity of {names}",
        )

    def profile_of(self, type_name: str) -> Profile:
        """Return the profile of a type's cards. Raises StopIteration for a type that does not fit."""
        return next(one.profile for one in self.found if one.offer.type == type_name)

    def renewed(self, offered: Iterable[InstanceOffer]) -> RentalChoice:
        """Return a copy with the regions of new offers; a type whose price has risen gets no regions."""
        now = {offer.type: offer for offer in offered}
        return self._replace(found=tuple(one._replace(offer=_renewed(one.offer, now)) for one in self.found))

    def regions_of(self, one: Priced) -> Sequence[str]:
        """Return the regions that have this type free, in the order to try them."""
        return _regions_of(one.offer, self.settings.region)

    @property
    def words(self) -> str:
        """The type, its price per hour, and its expected and maximum cost, in one line."""
        first, largest = self.first, self.cost.largest
        unknown = "duration unknown, " if first.expected is None else ""
        words = f"{self._where}: {unknown}{first.cost_words}"
        others = [one.offer for one in self.found if one.offer.type != first.offer.type]
        if others:
            words += f"; else {', '.join(f'{offer.type} at {offer.price}' for offer in others)}"
            if largest > first.largest:
                words += f", at most {dollars(largest)}"
        return words

    @property
    def offer_words(self) -> str:
        """The type to rent for any job and its maximum cost, in a few words."""
        return f"expected of {self._where}, {self.first.most_words}"

    @property
    def _where(self) -> str:
        regions = self.regions_of(self.first)
        where = f" in {regions[0]}" if regions else ", none free just now,"
        return f"{self.first.offer.type}{where} at {self.first.offer.price}"

    @property
    def findings(self) -> tuple[Finding, Finding]:
        """Two notes for the gate: the time reserved for downloads before the limit, and the price."""
        minutes = minutes_text(download_reserve_s(self.first.limit_s) / 60)
        home = (
            f"{self.host}: the last {minutes} before the limit are reserved for downloads: the run is then asked to save and stop;"
            " files not downloaded by the limit are lost with the machine"
        )
        return (
            Finding(level="note", code="home", message=home),
            Finding(level="note", code="price", message=f"{self.host}: {self.words}"),
        )


def priced(
    host: str,
    settings: RentalSettings,
    offers: Iterable[InstanceOffer],
    wanted: OfferFilter,
    expected: Callable[[Profile], Expected | None] = lambda _profile: None,
) -> RentalChoice:
    """Return the types that fit, in the order to try them, whether free or not.

    Without profiles and types, return the types with the same cards as the cheapest free type, since the user
    did not ask for more. The settings must have a limit. Raises UnknownNameError for a type that is not
    offered. Raises RefusedError, with a correction, if nothing fits or the limits are too small.
    """
    pairs = fitting(host, offers, wanted)
    found = [_priced(offer, profile, settings) for offer, profile in pairs]
    affordable = [one for one in found if one.limit_s >= one.boot_s]
    if not affordable:
        raise _too_small(host, found[0], settings)
    if not wanted.named and not wanted.types:
        free = [one for one in affordable if _regions_of(one.offer, settings.region)]
        first = (free or affordable)[0].profile
        affordable = [one for one in affordable if one.profile == first]
    return RentalChoice(host, settings, tuple(one.lasting(expected(one.profile)) for one in affordable))


def hours_text(seconds: float) -> str:
    """Return a duration as text, e.g. `8 h`, `45 min` or `5 h 1 min`."""
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
    """Return a type with its cost until the limit. The limit is in whole minutes, the unit of billing."""
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
