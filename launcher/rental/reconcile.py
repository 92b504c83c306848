"""Bring the ledger and what a provider lists into agreement, so that nothing of ours is paid for by mistake.

Only instances whose nonce is in the ledger are ended, and those that the user named. Two of these at once do no harm: to
end an instance twice is to end it, and each step of the ledger is made once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from launcher.errors import RefusedError
from launcher.rental.lease.renter import POLL_S, Renter, Termination
from launcher.rental.renting import Instance, Rental, RentalState
from launcher.rental.verdict import ENDED, SETTLE_S, JudgedRental, RentalVerdict, judge

OTHERS_S = 30.0
"""So long another command, which has another key, may take to record that a machine has gone."""


class Reconciled(NamedTuple):
    """What was ended at an account, the verdicts after that, and the files of the ledger that cannot be read, which are left alone.

    `left` was to be ended, and is still listed; the launches of `unmade` have turned out to have made nothing.
    """

    account: str
    ended: tuple[Termination, ...]
    judged: tuple[JudgedRental, ...]
    unreadable: tuple[Path, ...] = ()
    left: tuple[Termination, ...] = ()
    unmade: tuple[Rental, ...] = ()

    @property
    def listed(self) -> set[str]:
        """The instances that the account still has."""
        return {one.instance.id for one in self.judged if one.instance is not None}

    @property
    def is_anything_left(self) -> bool:
        """Whether anything of ours may still cost something though nobody wants it."""
        unwanted = (one for one in self.judged if one.verdict is not RentalVerdict.WANTED)
        return bool(self.unreadable) or any(_is_billed(one) for one in unwanted)


def survey(
    renter: Renter,
    wanted: Collection[str] = (),
    adopted: Collection[str] = (),
    bringing: Collection[str] = (),
) -> tuple[JudgedRental, ...]:
    """Return the verdict on each instance and rental, and change nothing. Raises ServiceError."""
    # In this order: a rental that is opened meanwhile is not known here, and its instance counts as a stranger's.
    rentals, ledger = renter.rentals(), renter.ledger
    held = {one.nonce for one in rentals if ledger.is_attended(one.nonce)}
    instances = renter.provider.instances()
    return judge(
        rentals,
        (*instances, *_unlisted(renter, rentals, instances)),
        account=renter.provider.account,
        now=renter.clock.now(),
        held=held,
        wanted=wanted,
        adopted=adopted,
        bringing=bringing,
    )


def _unlisted(renter: Renter, rentals: Iterable[Rental], instances: Iterable[Instance]) -> Iterator[Instance]:
    """Yield the instances of open rentals that are there though the list lacks them: by the list alone they would be gone."""
    listed = {instance.id for instance in instances}
    for rental in rentals:
        is_here = rental.intent.account == renter.provider.account
        if rental.is_open and is_here and rental.instance is not None and rental.instance not in listed:
            found = renter.provider.instance(rental.instance)
            if found is not None:
                yield found


def reconcile(
    renter: Renter,
    wanted: Collection[str] = (),
    adopted: Collection[str] = (),
    bringing: Collection[str] = (),
    *,
    only: Collection[str] | None = None,
    waits: bool = True,
    report: Callable[[str], object] = lambda _words: None,
) -> Reconciled:
    """End what is due or an orphan, and settle launches that nobody looks after; `report` hears what it waits for.

    `only` are the nonces of the rentals that this is about; None for all. With `waits` it looks for their instances for as
    long as one may take to appear, which is minutes; without, a later call goes on. Raises ServiceError, and RefusedError
    once all is ended if the ledger cannot be written.
    """
    ended: list[Termination] = []
    unmade: list[Rental] = []
    began = renter.clock.now()
    unwritten: OSError | None = None

    def look() -> tuple[JudgedRental, ...]:
        judged = survey(renter, wanted, adopted, bringing)
        return tuple(one for one in judged if only is None or (one.rental and one.rental.nonce in only))

    while True:
        judged = look()
        endings = [
            Termination(one.instance.id, one.why, one.rental)
            for one in judged
            if one.verdict in ENDED and one.instance is not None
        ]
        if endings:
            names = ", ".join(one.instance for one in endings)
            report(f"ending {names}, until {renter.provider.name} does not list it any more")
        left = {ending.instance: ending for ending in renter.end_all(endings)}
        ended += [
            one if one.rental is None else one._replace(rental=renter.known(one.rental))
            for one in endings
            if one.instance not in left
        ]
        for one in judged:
            rental = one.rental
            if (
                one.verdict is RentalVerdict.GONE
                and rental is not None
                and rental.state is RentalState.INTENT
            ):
                unmade.append(rental)
            try:
                _record(renter, one)
            except OSError as error:
                unwritten = error
        if unwritten is not None:
            raise RefusedError(f"{renter.ledger.words(unwritten)}\n  then   launch reconcile") from unwritten
        if not waits or not any(one.verdict is RentalVerdict.UNSETTLED for one in judged):
            break
        minutes = max(1, math.ceil((began + SETTLE_S - renter.clock.now()) / 60))
        report(
            f"looking for the instance of a launch without an answer, for {minutes} more minute{'s' * (minutes > 1)} at most"
        )
        renter.clock.sleep(POLL_S)
    judged = look()
    until = renter.clock.now() + OTHERS_S
    while any(_may_just_end(renter, one) for one in judged) and renter.clock.now() < until:
        renter.clock.sleep(POLL_S)
        judged = look()
    account, unreadable = renter.provider.account, renter.ledger.unreadable()
    return Reconciled(account, tuple(ended), judged, unreadable, tuple(left.values()), tuple(unmade))


def _may_just_end(renter: Renter, judged: JudgedRental) -> bool:
    """Whether another command may have ended a machine just now that this account does not list: it will be on record."""
    rental = judged.rental
    return (
        judged.verdict is RentalVerdict.ELSEWHERE
        and rental is not None
        and renter.known(rental).state in (RentalState.ENDING, RentalState.ENDED)
    )


def _record(renter: Renter, judged: JudgedRental) -> None:
    """Record in the ledger what the list says about a rental without an instance."""
    rental, now = judged.rental, renter.clock.now()
    if rental is None or judged.instance is not None:
        return
    if judged.verdict is RentalVerdict.UNSETTLED:
        renter.ledger.note_missing(rental.nonce, now)
    if judged.verdict is RentalVerdict.GONE:
        if rental.state is RentalState.INTENT:
            renter.ledger.step(rental.nonce, RentalState.UNSEEN, now, why=judged.why)
        else:
            cost = rental.time_cents(now)
            renter.ledger.step(rental.nonce, RentalState.ENDED, now, cents=cost, why=judged.why)
        for extra in rental.extras:
            if extra.cents is None:
                renter.ledger.note_extra(rental.nonce, extra.id, rental.time_cents(now))


def _is_billed(judged: JudgedRental) -> bool:
    if judged.verdict in (RentalVerdict.UNSETTLED, RentalVerdict.ELSEWHERE):
        return True
    return judged.instance is not None and (
        judged.verdict is not RentalVerdict.STRANGER or (judged.rental is not None and judged.rental.is_open)
    )
