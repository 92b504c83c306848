"""Choose what to rent: which types fit a profile, in which order they are tried, and what they cost.

Example: for the profile a100_40gb the types gpu_1x_a100 and gpu_1x_a100_sxm4 fit, both with 40 GB; the cheaper one comes
first, in each region that has one free. With max_hours = 8 at $1.99 an hour, $15.92 is the largest cost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from launcher.errors import CardBusyError, RefusedError
from launcher.values.base import Written
from launcher.values.lambda_settings import LONGEST_HOURS, PROPOSED_HOURS
from launcher.values.parsing import unknown_name
from launcher.values.profile import Profile
from launcher.values.renting import Offer, cents, dollars, minutes_text

_DESCRIPTION = re.compile(r"\s*(?P<card>[^()]*?)\s*\((?P<memory>\d{1,6}(?:\.\d{1,6})?)\s*GB\b.*")
_TYPE = re.compile(r"gpu_\d+x_(?P<family>\w+)")
_FAMILIES = {
    "a10": ("A10", 24),
    "a100": ("A100", 40),
    "a100_sxm4": ("A100", 40),
    "a100_80gb_sxm4": ("A100", 80),
    "a6000": ("RTX A6000", 48),
    "h100_pcie": ("H100", 80),
    "h100_sxm5": ("H100", 80),
    "rtx6000": ("Quadro RTX 6000", 24),
    "v100": ("Tesla V100", 16),
    "v100_n": ("Tesla V100", 16),
}
"""Card and memory in GB by the end of a type's name, for a description that does not tell: skypilot-catalog, 2026-08."""


ARM_TYPES = ("gh200", "gb200")
"""In the names of types whose processor is NVIDIA's Grace, an Arm."""
FOR_ARM = (
    "its processor is an Arm: what is built for x86 does not run there, and launcher was never tried on one"
)


class Limits(Written):
    """What a rental may take at most; one of them is needed."""

    max_hours: Annotated[float, Field(gt=0, le=LONGEST_HOURS)] | None = None
    max_cents: Annotated[int, Field(gt=0)] | None = None


class Expected(NamedTuple):
    """How long a rental is expected to last, and how one knows."""

    hours: float
    why: str


class Wish(NamedTuple):
    """What is to be rented. Without a profile any of the `known` ones will do; `cards` None leaves their number to it.

    `types` and `regions`, if there are any, are tried in their order; else the cheapest comes first.
    """

    named: Sequence[Profile] = ()
    known: Sequence[Profile] = ()
    types: Sequence[str] = ()
    regions: Sequence[str] = ()
    cards: int | None = None


class Priced(NamedTuple):
    """A type that will do, the profile of all its cards, how long it may be rented, and its costs in cents.

    `expected` is None if nothing is expected. The end itself takes minutes too, which are not in `largest`.
    """

    offer: Offer
    profile: Profile
    limit_s: float
    largest: int
    expected: int | None = None
    why_expected: str = ""


class Candidate(NamedTuple):
    """A type in a region that has one free."""

    priced: Priced
    region: str

    @property
    def offer(self) -> Offer:
        """The type."""
        return self.priced.offer

    @property
    def profile(self) -> Profile:
        """The profile of all its cards."""
        return self.priced.profile

    @property
    def limit_s(self) -> float:
        """How long it may be rented."""
        return self.priced.limit_s

    @property
    def largest(self) -> int:
        """What it may cost at most."""
        return self.priced.largest


def card_memory(type_name: str, description: str) -> tuple[str, float | None]:
    """Return the card of a type and its memory in GB, None if it is not known; e.g. of `H100 (80 GB SXM5)`."""
    if found := _DESCRIPTION.fullmatch(description):
        return found["card"], float(found["memory"])
    family = _TYPE.fullmatch(type_name)
    known = _FAMILIES.get(family["family"]) if family else None
    return (description or known[0], float(known[1])) if known else (description, None)


def is_arm(offer: Offer) -> bool:
    """Whether the processor of a type is an Arm."""
    return any(word in offer.type for word in ARM_TYPES)


def profile_of(offer: Offer, profiles: Iterable[Profile]) -> Profile | None:
    """Return the profile of all cards of an offer; None if none names that card."""
    known = [profile for profile in profiles if _is_card(offer, profile)]
    exact = next((profile for profile in known if profile.count == offer.cards), None)
    single = next((profile for profile in known if profile.count == 1), None)
    return exact or (single.of_cards(offer.cards) if single is not None and offer.cards else None)


def fits(offer: Offer, profile: Profile) -> bool:
    """Whether an offer has exactly the cards of a profile."""
    return offer.cards == profile.count and _is_card(offer, profile)


def by_price(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Return offers with the cheapest first."""
    return tuple(sorted(offers, key=lambda offer: (offer.cents_per_hour, offer.type)))


def boot_limit_s(cards: int) -> float:
    """Return how long an instance may take to boot: one with a single card is quicker."""
    return 900.0 if cards <= 1 else 1800.0


def priced(
    host: str,
    offers: Iterable[Offer],
    limits: Limits,
    wish: Wish,
    expected: Callable[[Profile], Expected | None] = lambda _profile: None,
) -> tuple[Priced, ...]:
    """Return the types that will do, the first one to try first, whether one is free or not.

    Without a profile and without types they are those with the cards of the cheapest that is free: nobody asked for more.
    Raises UnknownNameError for a type that is not offered, RefusedError, with what to write instead, if nothing fits or the
    limits are missing or too small.
    """
    fitting = _fitting(host, offers, wish)
    if limits.max_hours is None and limits.max_cents is None:
        raise _no_limit(host, *fitting[0], expected)
    affordable = [pair for pair in fitting if _limit_s(pair[0], limits) >= boot_limit_s(pair[0].cards)]
    if not affordable:
        raise _too_small(host, fitting[0][0], limits)
    if not wish.named and not wish.types:
        free = [profile for offer, profile in affordable if regions_of(offer, wish.regions)]
        first = (free or [affordable[0][1]])[0]
        affordable = [pair for pair in affordable if pair[1] == first]
    return tuple(_priced(offer, profile, limits, expected(profile)) for offer, profile in affordable)


def regions_of(offer: Offer, preferred: Sequence[str]) -> Sequence[str]:
    """Return the regions that have an offer free, in the order in which they are tried."""
    return [name for name in preferred if name in offer.regions] if preferred else offer.regions


def candidates(host: str, found: Sequence[Priced], regions: Sequence[str] = ()) -> tuple[Candidate, ...]:
    """Return what to try of some types, in their order, in each region that has one free.

    Raises CardBusyError if all are rented out just now.
    """
    free = [Candidate(one, region) for one in found for region in regions_of(one.offer, regions)]
    if not free:
        raise _nothing_free(host, [one.offer for one in found], regions)
    return tuple(free)


def _is_card(offer: Offer, profile: Profile) -> bool:
    """Whether an offer's card is a profile's: each word of its name is in one that a probe reports, and its memory is."""
    limits = profile.memory_limits_mib
    if profile.kind != "cuda" or offer.memory_gb is None or limits is None:
        return False
    words = _words(offer.card)
    is_named = bool(words) and any(words <= _words(name) for name in profile.probe_names)
    return is_named and limits[0] <= offer.memory_gb * 1024 <= limits[1]


def _words(name: str) -> set[str]:
    return set(re.findall(r"[A-Z0-9]+", name.upper()))


def _fitting(host: str, offers: Iterable[Offer], wish: Wish) -> Sequence[tuple[Offer, Profile]]:
    """Return what will do, with the profiles of its cards. Raises UnknownNameError, RefusedError."""
    known = {offer.type: offer for offer in by_price(offers)}
    for name in wish.types:
        if name not in known:
            raise unknown_name("type", name, known, looked_in=f"what {host} offers")
    listed = [known[name] for name in dict.fromkeys(wish.types)] or list(known.values())
    if wish.named:
        profiles = [_of_cards(profile, wish.cards) for profile in wish.named]
        pairs = [(offer, profile) for offer in listed for profile in profiles if fits(offer, profile)]
    else:
        sized = [offer for offer in listed if wish.cards in (None, offer.cards)]
        sized = sized if wish.types else [offer for offer in sized if not is_arm(offer)]  # not unasked
        found = [(offer, profile_of(offer, wish.known)) for offer in sized]
        pairs = [(offer, profile) for offer, profile in found if profile is not None]
    if pairs:
        return pairs
    raise _unfit(host, listed, wish)


def _of_cards(profile: Profile, cards: int | None) -> Profile:
    return profile if cards is None or profile.kind != "cuda" else profile.of_cards(cards)


def _unfit(host: str, listed: Sequence[Offer], wish: Wish) -> RefusedError:
    """Say why nothing will do, and what would."""
    shown = ", ".join(f"{offer.type} ({offer.title})" for offer in listed) if wish.types else ""
    if wish.named:
        asked = " or ".join(_of_cards(profile, wish.cards).title for profile in wish.named)
        alike = {offer.cards for offer in listed for profile in wish.named if _is_card(offer, profile)}
        if wish.types and alike:
            mend = f"all its cards   --gpus {min(alike)}     one card   launch offers --profile {wish.named[0].name}"
        elif wish.types:
            mend = f"leave `type` out, or name one of   launch offers --profile {wish.named[0].name}"
        else:
            counts = ", ".join(map(str, sorted(alike)))
            mend = (
                f"it has {counts} of them   --gpus {min(alike)}" if alike else "what it has   launch offers"
            )
        words = f"{shown} is not {asked}" if wish.types else f"no type has {asked}"
        return RefusedError(f"{host}: {words}\n  {mend}{_arm_words(listed, wish)}")
    if wish.types and wish.cards is not None:
        return RefusedError(
            f"{host}: {shown} has not {wish.cards} cards\n  leave out --gpus, or name another type"
        )
    if wish.types:
        card = listed[0].card or listed[0].title
        return RefusedError(
            f"{host}: {shown} has a card that no profile names\n"
            f'  write profiles/NAME.toml with probe_names = ["NVIDIA {card}"], which begins as   launch profile show l40s --toml{_arm_words(listed, wish)}'
        )
    cards = "cards" if wish.cards is None else f"{wish.cards} cards"
    return RefusedError(f"{host}: no type has {cards} that a profile names\n  what it has   launch offers")


def _arm_words(listed: Sequence[Offer], wish: Wish) -> str:
    """Say that what was named has an Arm as its processor."""
    arms = [offer.type for offer in listed if wish.types and is_arm(offer)]
    return f"\n  {', '.join(arms)}: {FOR_ARM}" if arms else ""


def _limit_s(offer: Offer, limits: Limits) -> float:
    """Return how long an offer may be rented: in whole minutes, as it is billed."""
    hours = [LONGEST_HOURS] if limits.max_hours is None else [limits.max_hours]
    if limits.max_cents is not None:
        hours.append(limits.max_cents / offer.cents_per_hour)
    return int(min(hours) * 60 + 1e-6) * 60.0


def _priced(offer: Offer, profile: Profile, limits: Limits, expected: Expected | None) -> Priced:
    limit_s, price = _limit_s(offer, limits), offer.cents_per_hour
    largest = cents(limit_s, price)
    if expected is None:
        return Priced(offer, profile, limit_s, largest)
    cost = cents(min(expected.hours * 3600, limit_s), price)
    return Priced(offer, profile, limit_s, largest, cost, expected.why)


def _no_limit(
    host: str, offer: Offer, profile: Profile, expected: Callable[[Profile], Expected | None]
) -> RefusedError:
    likely = expected(profile)
    hours = PROPOSED_HOURS if likely is None else max(1, math.ceil(likely.hours * 2))
    cost = dollars(cents(hours * 3600, offer.cents_per_hour))
    return RefusedError(
        f"{host}: a rented machine costs money until it is ended, so max_hours or max_cost is needed\n"
        f"  in its table   max_hours = {hours}      which is at most {cost} with {offer.type} at {offer.price}"
    )


def _too_small(host: str, offer: Offer, limits: Limits) -> RefusedError:
    minutes, boots = _limit_s(offer, limits) / 60, boot_limit_s(offer.cards) / 60
    written = [] if limits.max_hours is None else [f"max_hours = {limits.max_hours:g}"]
    written += [] if limits.max_cents is None else [f"max_cost = {limits.max_cents / 100:g}"]
    return RefusedError(
        f"{host}: {' and '.join(written)} allows {minutes_text(minutes)} of {offer.type} at {offer.price}, "
        f"which may take {boots:.0f} to boot\n  nothing was rented; raise the limit, or name a cheaper type: launch offers"
    )


def _nothing_free(host: str, offers: Sequence[Offer], regions: Sequence[str]) -> CardBusyError:
    names = ", ".join(offer.type for offer in offers)
    where = f" in {', '.join(regions)}" if regions else ""
    others = sorted({name for offer in offers for name in offer.regions})
    elsewhere = f"; free in {', '.join(others)}" if regions and others else ""
    return CardBusyError(
        f"{host}: none free of {names}{where}{elsewhere}\n  what is free   launch offers     or wait for one   --wait 30m",
        f"no capacity of {names}",
    )
