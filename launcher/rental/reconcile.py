"""Bring the ledger and the provider's list into agreement, so that nothing is billed by mistake.

It terminates only instances whose nonce is in the ledger, and instances that the user named. Two concurrent
calls do no harm: terminating an instance twice has the effect of once, and the ledger records each step once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from launcher.errors import RefusedError
from launcher.rental.lease.renter import POLL_S, ProviderAccount, Termination
from launcher.rental.renting import Instance, Rental, RentalState
from launcher.rental.verdict import ENDED, SETTLE_S, JudgedRental, RentalVerdict, judge

OTHERS_S = 30.0
"""The seconds that a command with another key may take to record that a machine is gone."""


class Reconciled(NamedTuple):
    """The instances terminated at an account, the verdicts afterwards, and the unreadable ledger files.

    `left`: terminations whose instances are still listed. `unmade`: launches that turned out to have created
    nothing.
    """

    account: str
    ended: tuple[Termination, ...]
    judged: tuple[JudgedRental, ...]
    unreadable: tuple[Path, ...] = ()
    left: tuple[Termination, ...] = ()
    unmade: tuple[Rental, ...] = ()

    @property
    def listed(self) -> set[str]:
        """The ids of the instances that the account still lists."""
        return {one.instance.id for one in self.judged if one.instance is not None}

    @property
    def is_anything_left(self) -> bool:
        """Whether a rental of this user that is not wanted may still cost something."""
        unwanted = (one for one in self.judged if one.verdict is not RentalVerdict.WANTED)
        return bool(self.unreadable) or any(_is_billed(one) for one in unwanted)


def survey(
    renter: ProviderAccount,
    wanted: Collection[str] = (),
    adopted: Collection[str] = (),
    bringing: Collection[str] = (),
) -> tuple[JudgedRental, ...]:
    """Return the verdict on each instance and rental. Change nothing. Raises ServiceError."""
    # The order matters: the rentals are read before the instances. A rental opened in between is unknown
    # here, and its instance counts as a stranger's.
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


def _unlisted(
    renter: ProviderAccount, rentals: Iterable[Rental], instances: Iterable[Instance]
) -> Iterator[Instance]:
    """Yield the instances of open rentals that exist but are missing in the list.

    By the list alone they would count as gone.
    """
    listed = {instance.id for instance in instances}
    for rental in rentals:
        is_here = rental.intent.account == renter.provider.account
        if rental.is_open and is_here and rental.instance is not None and rental.instance not in listed:
            found = renter.provider.instance(rental.instance)
            if found is not None:
                yield found


def reconcile(
    renter: ProviderAccount,
    wanted: Collection[str] = (),
    adopted: Collection[str] = (),
    bringing: Collection[str] = (),
    *,
    only: Collection[str] | None = None,
    waits: bool = True,
    report: Callable[[str], object] = lambda _words: None,
) -> Reconciled:
    """Terminate due and orphaned instances, and settle launches that no process manages.

    `report` receives progress messages. `only` limits the call to the rentals with these nonces; None means
    all. With `waits`, wait for the instances of unanswered launches as long as one may take to appear
    (minutes); without it, a later call settles them. Raises ServiceError. Raises RefusedError, after all
    terminations, if the ledger cannot be written.
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


def _may_just_end(renter: ProviderAccount, judged: JudgedRental) -> bool:
    """Whether another command may have just terminated a machine that this account does not list.

    That command will record it.
    """
    rental = judged.rental
    return (
        judged.verdict is RentalVerdict.ELSEWHERE
        and rental is not None
        and renter.known(rental).state in (RentalState.ENDING, RentalState.ENDED)
    )


def _record(renter: ProviderAccount, judged: JudgedRental) -> None:
    """Record in the ledger the verdict on a rental without an instance."""
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
