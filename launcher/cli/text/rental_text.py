"""Rental options before a launch, and open rentals, as text and as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.cli.json_output.host_shapes import RentalRow
    from launcher.cli.json_output.preview_shapes import RentalOption, RentalShown
    from launcher.rental.open_rentals import OpenRental, OpenRentals
    from launcher.rental.price import Priced, RentalChoice


def show_rental(choice: RentalChoice) -> None:
    """Print the rental options in the order they are tried: price per hour, free regions, and cost."""
    from launcher.cli.output.wrapping import say_wrapped

    for number, one in enumerate(choice.found):
        free = ", ".join(choice.regions_of(one))
        where = f" in {free}" if free else ", none free just now"
        words = f"{one.offer.type} at {one.offer.price}{where}: {one.cost_words}"
        say_wrapped(f"  {'rent' if number == 0 else 'or':<10} {words}", hang=13)


def rental_shape(choice: RentalChoice | None) -> RentalShown | None:
    """Return the rental options as JSON; None without a rental."""
    if choice is None:
        return None
    from launcher.cli.json_output.preview_shapes import RentalShown

    return RentalShown(
        options=[_option(choice, one) for one in choice.found],
        largest_cents=choice.cost.largest,
        confirm_above_cents=round(choice.settings.confirm_above * 100),
    )


def _option(choice: RentalChoice, one: Priced) -> RentalOption:
    from launcher.cli.json_output.preview_shapes import RentalOption

    return RentalOption(
        type=one.offer.type,
        profile=one.profile.name,
        cards=one.offer.cards,
        regions=list(choice.regions_of(one)),
        cents_per_hour=one.offer.cents_per_hour,
        hours=one.limit_s / 3600,
        expected_cents=one.expected,
        why_expected=one.why_expected or None,
        largest_cents=one.largest,
    )


def show_rentals(rented: OpenRentals) -> None:
    """Print the open rentals: start, cost so far and state. Then print their total and warnings."""
    from launcher.cli.output.columns import Column, print_columns
    from launcher.cli.output.say import say
    from launcher.cli.output.wrapping import say_wrapped
    from launcher.rental.renting import dollars

    columns = (
        Column("RENTED FOR", 12),
        Column("TYPE", 12),
        Column("REGION", drop=2),
        Column("SINCE"),
        Column("SO FAR", is_figure=True),
        Column("AN HOUR", is_figure=True, drop=1),
        Column("ENDS BY", drop=3),
        Column("KEEPER"),
        Column("", 12, wraps=True),
    )
    rows = [
        (
            one.run,
            one.rental.intent.type,
            one.rental.intent.region,
            _clock(one.rental.since),
            one.cost,
            dollars(one.rental.intent.cents_per_hour),
            _clock(one.rental.intent.deadline),
            _keeper(one),
            one.doing,
        )
        for one in rented.rentals
    ]
    say("")
    if rows:
        print_columns(columns, rows)
    if rented.total is not None:
        say_wrapped(rented.total)
    if warnings := rented.warnings():
        say_wrapped(*(f"! {words}" for words in warnings))


def _keeper(one: OpenRental) -> str:
    if not one.is_held:
        return "stopped" if one.is_stopped else "none"
    return "key refused" if one.is_refused else "alive"


def _clock(moment: float) -> str:
    return time.strftime("%d %b %H:%M", time.localtime(moment))


def rental_row(one: OpenRental) -> RentalRow:
    """Return a rental as JSON."""
    from launcher.cli.json_output.host_shapes import RentalRow

    intent = one.rental.intent
    return RentalRow(
        run=one.run,
        type=intent.type,
        region=intent.region,
        instance=one.rental.instance,
        state="unsettled" if one.is_unsettled else one.rental.state.value,
        since=one.rental.since,
        deadline=intent.deadline,
        cents_per_hour=intent.cents_per_hour,
        cents=one.cents,
        held=one.is_held,
        past=one.is_past,
        problem=one.problem,
    )
