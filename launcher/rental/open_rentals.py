"""What is rented just now, as this user's ledger knows it: since when, what it has cost, and what is wrong with it.

The provider is not asked: that is for `launch reconcile`.
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
    """A rental that may cost something, whether a process here looks after it, and its cost so far in cents, at most.

    If nobody knows whether its launch made an instance, that is what the instance would have cost. `run` is the run that it is
    for; another one may have taken over the machine since it was rented. `is_kept`: its table says that it is not ended with
    its run. `is_refused`: the account refuses the key of the process that looks after it. `is_stopped`: that process is stopped
    or hangs.
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
        """What it has cost; of a launch without an answer, what it may have cost."""
        return f"nothing or {dollars(self.cents)}" if self.is_unsettled else dollars(self.cents)

    @property
    def is_attended(self) -> bool:
        """Whether a process here looks after it that can end it."""
        return self.is_held and not self.is_refused

    @property
    def is_unsettled(self) -> bool:
        """Whether nobody knows if its launch made an instance."""
        return self.rental.state is RentalState.INTENT and not self.is_held

    @property
    def doing(self) -> str:
        """What it does, as far as is known here."""
        if self.is_unsettled:
            return "unsettled"
        return _DOING.get(self.rental.state, "another instance of its launch is being ended")

    @property
    def kept_words(self) -> str:
        """What is said of a machine that goes on after its run, as its table says."""
        intent = self.rental.intent
        until = time.strftime("%d %b %H:%M", time.localtime(intent.deadline))
        return (
            f"{intent.type} of {self.run} is kept: {self.cost} so far, {dollars(intent.cents_per_hour)}/h, until its limit at {until}"
            f"   end it   {RECONCILE} --adopt {self.rental.instance}"
        )

    @property
    def problem(self) -> str | None:
        """What is wrong, and what to type; None if a process here takes care of it in time."""
        if self.is_unsettled:
            return f"its launch has no answer, and may have made an instance   {RECONCILE}"
        if self.is_past:
            return f"is past its limit, and may still be billed   {RECONCILE}"
        if self.is_held and self.is_refused:
            return f"the process here that looks after it has a key that is refused; with a good one   {RECONCILE}"
        if self.is_stopped:
            return f"the process here that looks after it is stopped; another takes over   {RECONCILE}"
        if not self.is_held and self.is_kept:
            return f"is kept until its limit; to end it   {RECONCILE} --adopt {self.rental.instance}"
        if not self.is_held:
            return f"no process here ends it   {RECONCILE}"
        return None


class OpenRentals(NamedTuple):
    """All of them, the oldest first, and files of the ledger that this version cannot read: they may be of others."""

    rentals: tuple[OpenRental, ...]
    unreadable: tuple[Path, ...]

    @property
    def total(self) -> str | None:
        """What all of them have cost, and what an hour of all costs; None unless there are several."""
        if len(self.rentals) < 2:
            return None
        hourly = sum(one.rental.intent.cents_per_hour for one in self.rentals)
        return f"all {len(self.rentals)} together {dollars(sum(one.cents for one in self.rentals))} so far, {dollars(hourly)}/h"

    def warnings(self) -> list[str]:
        """Return a line for each thing that somebody should look at."""
        lines = [
            f"{one.rental.intent.type} of {one.run}, {one.cost} so far: {one.problem}"
            for one in self.rentals
            if one.problem is not None
        ]
        return lines + [f"{path}: cannot be read; what it records may be billed" for path in self.unreadable]


def open_rentals() -> OpenRentals:
    """Return what may cost something, by the ledger."""
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
