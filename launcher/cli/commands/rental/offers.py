"""offers: list the instance types that can be rented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import CardOption, HostOption, JsonFlag
from launcher.cli.output.say import say

if TYPE_CHECKING:
    from launcher.cli.json_output.host_shapes import OfferRow
    from launcher.rental.renting import InstanceOffer
    from launcher.values.profile import Profile


def offers(
    host: HostOption = None,
    profile: CardOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the instance types at Lambda Cloud, the cheapest first: cards, price per hour, and regions with a free one.

    With --profile, only the types with its card, in any number. Nothing is rented. The key is read from LAMBDA_API_KEY;
    no host table is needed.

    Examples:
        launch offers
        launch offers --profile a100 --json
    """
    from launcher.backends.base.rental_choice import offering_host
    from launcher.backends.base.rental_choice import offers as ask
    from launcher.config.lookup import Lookup
    from launcher.rental.offers import by_price, profile_of

    lookup = Lookup()
    wanted = lookup.profiles_meant(profile) if profile not in (None, "auto") else ()
    place = offering_host(host)
    known = tuple(lookup.profiles.values())
    found = [(offer, profile_of(offer, wanted or known)) for offer in by_price(ask(place))]
    shown = [pair for pair in found if pair[1] is not None or not wanted]
    if as_json:
        from launcher.cli.json_output.host_shapes import Offers
        from launcher.cli.output.answer import answer

        answer(Offers(host=place.name, offers=[_shape(*pair) for pair in shown]))
        return
    if not shown:
        say(f"{place.name}: no type has {' or '.join(one.title for one in wanted)}   launch offers")
        return
    _show(shown)
    example = next((card.name for offer, card in shown if card is not None and offer.regions), None)
    if example is not None:
        say(f"rent one   launch --host {place.name} --profile {example} …")


def _shape(offer: InstanceOffer, profile: Profile | None) -> OfferRow:
    from launcher.cli.json_output.host_shapes import OfferRow

    values = {**offer.model_dump(), "regions": list(offer.regions)}
    return OfferRow(**values, profile=profile.name if profile is not None else None)


def _show(found: list[tuple[InstanceOffer, Profile | None]]) -> None:
    from launcher.cli.output.columns import Column, print_columns
    from launcher.cli.output.wrapping import say_wrapped
    from launcher.rental.offers import FOR_ARM, is_arm

    columns = (
        Column("TYPE", 12),
        Column("CARDS", 10),
        Column("EACH", drop=2),
        Column("AN HOUR", is_figure=True),
        Column("PROFILE", drop=1),
        Column("FREE IN", 12, wraps=True),
    )
    rows = [
        (
            offer.type,
            (f"{offer.cards} x {offer.card}" if offer.cards else "-") + (", Arm" if is_arm(offer) else ""),
            f"{offer.memory_gb:g} GB" if offer.memory_gb is not None else "-",
            offer.price.removesuffix("/h"),
            profile.name if profile is not None else "-",
            ", ".join(offer.regions) or "-",
        )
        for offer, profile in found
    ]
    print_columns(columns, rows)
    if unnamed := dict.fromkeys(offer.card for offer, profile in found if profile is None and offer.card):
        say_wrapped(
            f"PROFILE -: no profile names {', '.join(unnamed)}: write one, profiles/NAME.toml; a start   launch profile show l40s --toml"
        )
    for offer, _ in found:
        if is_arm(offer):
            say_wrapped(f"{offer.type}: {FOR_ARM}")
