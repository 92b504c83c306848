"""The open rentals in this user's ledger: their start, cost and problems.

The provider is not asked; `launch reconcile` does that.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from launcher.rental.records import ledger, rented
from launcher.rental.renting import Rental, RentalState, dollars
from launcher.rental.service_clock import clock_of

RECONCILE = "launch reconcile"
_DOING = {
    RentalState.INTENT: "being launched",
    RentalState.LAUNCHED: "boots",
    RentalState.READY: "in use",
    RentalState.ENDING: "is being ended",
}


class OpenRental(NamedTuple):
    """A rental that may cost something, and its maximum cost so far in cents.

    If an instance may or may not exist, `cents` is the cost in case it does. `run` is the run that uses the
    machine; it differs from the rental's own run if another run took over the machine. `is_kept`: the
    settings keep the machine after its run. `is_held`: a process on this computer manages the rental.
    `is_refused`: the account refuses the API key of that process. `is_stopped`: that process is stopped or
    hangs.
    """

    rental: Rental
    run: str
    cents: int
    is_past: bool
    is_kept: bool
    is_held: bool
    is_refused: bool
    is_stopped: bool

    @property
    def cost(self) -> str:
        """The cost so far. For a launch without an answer, the possible cost."""
        return f"nothing or {dollars(self.cents)}" if self.is_unsettled else dollars(self.cents)

    @property
    def is_attended(self) -> bool:
        """Whether a process on this computer manages the rental and can terminate the machine."""
        return self.is_held and not self.is_refused

    @property
    def is_unsettled(self) -> bool:
        """Whether the launch has no answer yet, so that an instance may or may not exist."""
        return self.rental.state is RentalState.INTENT and not self.is_held

    @property
    def doing(self) -> str:
        """The rental's state in words, as known on this computer."""
        if self.is_unsettled:
            return "unsettled"
        return _DOING.get(self.rental.state, "another instance of its launch is being ended")

    @property
    def kept_words(self) -> str:
        """The message about a machine that its settings keep after its run."""
        intent = self.rental.intent
        until = time.strftime("%d %b %H:%M", time.localtime(intent.deadline))
        return (
            f"{intent.type} of {self.run} is kept: {self.cost} so far, {dollars(intent.cents_per_hour)}/h, until its limit at {until}"
            f"   end it   {RECONCILE} --adopt {self.rental.instance}"
        )

    @property
    def problem(self) -> str | None:
        """The problem and the command to type.

        None if a process on this computer manages the rental and will end it in time.
        """
        if self.is_unsettled:
            return f"its launch has no answer, and may have made an instance   {RECONCILE}"
        if self.is_past:
            return f"is past its limit, and may still be billed   {RECONCILE}"
        if self.is_held and self.is_refused:
            return f"the API key of the process here that manages it is refused; with an accepted key   {RECONCILE}"
        if self.is_stopped:
            return f"the process here that manages it is stopped; to take over   {RECONCILE}"
        if not self.is_held and self.is_kept:
            return f"is kept until its limit; to end it   {RECONCILE} --adopt {self.rental.instance}"
        if not self.is_held:
            return f"no process here ends it   {RECONCILE}"
        return None


class OpenRentals(NamedTuple):
    """All open rentals, oldest first, and the ledger files that this version cannot read.

    An unreadable file may belong to another version.
    """

    rentals: tuple[OpenRental, ...]
    unreadable: tuple[Path, ...]

    @property
    def total(self) -> str | None:
        """The total cost and the total price per hour, or None for fewer than two rentals."""
        if len(self.rentals) < 2:
            return None
        hourly = sum(one.rental.intent.cents_per_hour for one in self.rentals)
        return f"all {len(self.rentals)} together {dollars(sum(one.cents for one in self.rentals))} so far, {dollars(hourly)}/h"

    def warnings(self) -> list[str]:
        """Return one line for each problem that needs the user's attention."""
        lines = [
            f"{one.rental.intent.type} of {one.run}, {one.cost} so far: {one.problem}"
            for one in self.rentals
            if one.problem is not None
        ]
        return lines + [
            f"{path}: cannot be read; the rentals that it records may still be billed"
            for path in self.unreadable
        ]


def open_rentals() -> OpenRentals:
    """Return the rentals in the ledger that may cost something."""
    book = ledger()
    open_ones = [rental for rental in book.rentals() if rental.is_open]
    known = {one.rental.nonce: one.record for one in rented()} if open_ones else {}
    found = []
    for rental in open_ones:
        record, now = known.get(rental.nonce), clock_of(rental.intent.provider).likely()
        may_be_billed = rental.state is RentalState.INTENT
        found.append(
            OpenRental(
                rental,
                rental.intent.run if record is None else record.run,
                rental.time_cents(now) if may_be_billed else rental.cents_at(now),
                is_past=rental.is_past(now),
                is_kept=record is not None and record.keeps,
                is_held=book.is_held(rental.nonce),
                is_refused=book.is_refused(rental.nonce),
                is_stopped=book.is_stopped(rental.nonce),
            )
        )
    return OpenRentals(tuple(found), book.unreadable())
