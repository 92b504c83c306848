"""Choose the instance types that fit a profile, and the order in which to try them.

Example: for the profile a100_40gb the types gpu_1x_a100 and gpu_1x_a100_sxm4 fit, both with 40 GB; the
cheaper one comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcher.errors import RefusedError
from launcher.rental.renting import InstanceOffer
from launcher.values.parsing import unknown_name
from launcher.values.profile import Profile

_DESCRIPTION = re.compile(r"\s*(?P<card>[^()]*?)\s*\((?P<memory>\d{1,6}(?:\.\d{1,6})?)\s*GB\b.*")
_TYPE = re.compile(r"gpu_\d+x_(?P<family>\w+)")
_FAMILIES = {
    "a10": ("A10", 24),
    "a100": ("A100", 40),
    "a100_sxm4": ("A100", 40),
    "a100_80gb_sxm4": ("A100", 80),
    "a6000": ("RTX A6000", 48),
    "b200_sxm6": ("B200", 180),
    "gh200": ("GH200", 96),
    "h100_pcie": ("H100", 80),
    "h100_sxm5": ("H100", 80),
    "rtx6000": ("Quadro RTX 6000", 24),
    "v100": ("Tesla V100", 16),
    "v100_n": ("Tesla V100", 16),
}
"""Card and memory in GB by the end of a type's name, for descriptions without them.

Source: skypilot-catalog, 2026-08.
"""


ARM_TYPES = ("gh200", "gb200")
"""Substrings in the names of types with an Arm processor (NVIDIA Grace)."""
FOR_ARM = "its processor is Arm: programs built for x86 do not run on it, and launcher was never tried on one"


class OfferFilter(NamedTuple):
    """The instances a run accepts. Without a profile, any profile in `known` will do.

    `cards` None leaves the number of cards to the profile. Non-empty `types` are tried in their order;
    otherwise the cheapest comes first.
    """

    named: Sequence[Profile] = ()
    known: Sequence[Profile] = ()
    types: Sequence[str] = ()
    cards: int | None = None


def card_memory(type_name: str, description: str) -> tuple[str, float | None]:
    """Return a type's card and its memory in GB, or None if unknown.

    Example description: `H100 (80 GB SXM5)`.
    """
    if found := _DESCRIPTION.fullmatch(description):
        return found["card"], float(found["memory"])
    family = _TYPE.fullmatch(type_name)
    known = _FAMILIES.get(family["family"]) if family else None
    return (description or known[0], float(known[1])) if known else (description, None)


def is_arm(offer: InstanceOffer) -> bool:
    """Whether a type has an Arm processor."""
    return any(word in offer.type for word in ARM_TYPES)


def profile_of(offer: InstanceOffer, profiles: Iterable[Profile]) -> Profile | None:
    """Return the profile of all cards of an offer, or None if no profile names that card."""
    known = [profile for profile in profiles if _is_card(offer, profile)]
    exact = next((profile for profile in known if profile.count == offer.cards), None)
    single = next((profile for profile in known if profile.count == 1), None)
    return exact or (single.of_cards(offer.cards) if single is not None and offer.cards else None)


def fits(offer: InstanceOffer, profile: Profile) -> bool:
    """Whether an offer has exactly the cards of a profile."""
    return offer.cards == profile.count and _is_card(offer, profile)


def by_price(offers: Iterable[InstanceOffer]) -> tuple[InstanceOffer, ...]:
    """Return offers, cheapest first."""
    return tuple(sorted(offers, key=lambda offer: (offer.cents_per_hour, offer.type)))


def _is_card(offer: InstanceOffer, profile: Profile) -> bool:
    """Whether an offer's card matches a profile.

    One of the profile's probe names must contain each word of the card's name, and the memory must lie within
    the profile's limits.
    """
    limits = profile.memory_limits_mib
    if profile.kind != "cuda" or offer.memory_gb is None or limits is None:
        return False
    words = _words(offer.card)
    is_named = bool(words) and any(words <= _words(name) for name in profile.probe_names)
    return is_named and limits[0] <= offer.memory_gb * 1024 <= limits[1]


def _words(name: str) -> set[str]:
    return set(re.findall(r"[A-Z0-9]+", name.upper()))


def fitting(
    host: str, offers: Iterable[InstanceOffer], wanted: OfferFilter
) -> Sequence[tuple[InstanceOffer, Profile]]:
    """Return the types that fit, in the order to try them, each with the profile of its cards.

    Raises UnknownNameError, RefusedError.
    """
    known = {offer.type: offer for offer in by_price(offers)}
    for name in wanted.types:
        if name not in known:
            raise unknown_name("type", name, known, looked_in=f"what {host} offers")
    listed = [known[name] for name in dict.fromkeys(wanted.types)] or list(known.values())
    if wanted.named:
        profiles = [_of_cards(profile, wanted.cards) for profile in wanted.named]
        pairs = [(offer, profile) for offer in listed for profile in profiles if fits(offer, profile)]
    else:
        sized = [offer for offer in listed if wanted.cards in (None, offer.cards)]
        sized = (
            sized if wanted.types else [offer for offer in sized if not is_arm(offer)]
        )  # an Arm type must be named
        found = [(offer, profile_of(offer, wanted.known)) for offer in sized]
        pairs = [(offer, profile) for offer, profile in found if profile is not None]
    if pairs:
        return pairs
    raise _unfit(host, listed, wanted)


def _of_cards(profile: Profile, cards: int | None) -> Profile:
    return profile if cards is None or profile.kind != "cuda" else profile.of_cards(cards)


def _unfit(host: str, listed: Sequence[InstanceOffer], wanted: OfferFilter) -> RefusedError:
    """Return the error that explains why nothing fits and how to correct the request."""
    shown = ", ".join(f"{offer.type} ({offer.title})" for offer in listed) if wanted.types else ""
    if wanted.named:
        asked = " or ".join(_of_cards(profile, wanted.cards).title for profile in wanted.named)
        alike = {offer.cards for offer in listed for profile in wanted.named if _is_card(offer, profile)}
        if wanted.types and alike:
            mend = f"all its cards   --gpus {min(alike)}     one card   launch offers --profile {wanted.named[0].name}"
        elif wanted.types:
            mend = f"leave `type` out, or name one of   launch offers --profile {wanted.named[0].name}"
        else:
            counts = ", ".join(map(str, sorted(alike)))
            mend = (
                f"it has {counts} of them   --gpus {min(alike)}"
                if alike
                else "available types   launch offers"
            )
        words = f"{shown} is not {asked}" if wanted.types else f"no type has {asked}"
        return RefusedError(f"{host}: {words}\n  {mend}{_arm_words(listed, wanted)}")
    if wanted.types and wanted.cards is not None:
        return RefusedError(
            f"{host}: {shown} does not have {wanted.cards} cards\n  leave out --gpus, or name another type"
        )
    if wanted.types:
        card = listed[0].card or listed[0].title
        return RefusedError(
            f"{host}: {shown} has a card that no profile names\n"
            f'  write profiles/NAME.toml with probe_names = ["NVIDIA {card}"], on the model of   launch profile show l40s --toml{_arm_words(listed, wanted)}'
        )
    cards = "cards" if wanted.cards is None else f"{wanted.cards} cards"
    return RefusedError(
        f"{host}: no type has {cards} that a profile names\n  available types   launch offers"
    )


def _arm_words(listed: Sequence[InstanceOffer], wanted: OfferFilter) -> str:
    """Return the warning about named types with an Arm processor, or an empty text."""
    arms = [offer.type for offer in listed if wanted.types and is_arm(offer)]
    return f"\n  {', '.join(arms)}: {FOR_ARM}" if arms else ""
