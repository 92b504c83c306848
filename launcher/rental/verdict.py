"""The verdict on each instance of an account and each rental in the ledger: a pure decision.

Example: an instance whose nonce is in the ledger, without a managing process or a run that needs it, is an
orphan and is terminated. An instance without such a nonce is a stranger's and stays, whatever its name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from launcher.rental.renting import (
    ELSEWHERE,
    NAMED,
    OPEN,
    Instance,
    InstanceState,
    Rental,
    RentalReason,
    RentalState,
)

SETTLE_S = 300.0
"""The seconds that an instance may take to appear in the list after a launch without an answer."""
GRACE_S = 600.0
"""The seconds past the deadline during which the managing process may still download files."""
_FURTHER = (
    InstanceState.ACTIVE,
    InstanceState.UNHEALTHY,
    InstanceState.BOOTING,
    InstanceState.UNKNOWN,
    InstanceState.PREEMPTED,
    InstanceState.ENDING,
)
"""States, the most advanced first. An instance in one of the last states never becomes usable."""


class RentalVerdict(StrEnum):
    """The verdict on an instance or a rental."""

    WANTED = "wanted"
    DUE = "due"
    ORPHAN = "orphan"
    STRANGER = "stranger"
    ADOPTED = "adopted"
    UNSETTLED = "unsettled"
    GONE = "gone"
    ELSEWHERE = "elsewhere"


UNMARKED = (
    "the provider returned it for a launch of this computer, but its name and tags lack launcher's mark"
)
"""Why an instance is left alone although the ledger has its id."""
LOST_THERE = f"{NAMED}; this computer has no record of a run, so files that are only on it are lost"
"""The reason to terminate an instance that the user named and that was not rented here."""
ENDED = (RentalVerdict.DUE, RentalVerdict.ORPHAN, RentalVerdict.ADOPTED)
"""The verdicts whose instances are terminated."""


class JudgedRental(NamedTuple):
    """A verdict on an instance, a rental, or both, and its reason."""

    verdict: RentalVerdict
    why: str
    instance: Instance | None = None
    rental: Rental | None = None


def judge(
    rentals: Sequence[Rental],
    instances: Iterable[Instance],
    *,
    account: str,
    now: float,
    held: Collection[str] = (),
    wanted: Collection[str] = (),
    adopted: Collection[str] = (),
    bringing: Collection[str] = (),
) -> tuple[JudgedRental, ...]:
    """Return the verdict on each instance, then on each open rental without an instance.

    `held` are the nonces that running processes manage. `bringing` are those of them whose files are being
    downloaded. `wanted` are the runs that still need their machine. `adopted` are the ids of instances that
    the user named for termination, whether rented here or not.
    """
    by_nonce = {rental.nonce: rental for rental in rentals}
    billed = [instance for instance in instances if instance.is_billed]
    first = {nonce: first_of(rental, billed) for nonce, rental in by_nonce.items()}
    found, unmarked = [], set()
    for instance in billed:
        rental = owner_of(instance, rentals)
        named_by = next((one for one in rentals if one.is_open and one.instance == instance.id), None)
        if instance.id in adopted:
            found.append(
                JudgedRental(
                    RentalVerdict.ADOPTED,
                    NAMED if rental or named_by else LOST_THERE,
                    instance,
                    rental or named_by,
                )
            )
        elif rental is None and named_by is not None:
            unmarked.add(named_by.nonce)
            found.append(JudgedRental(RentalVerdict.STRANGER, UNMARKED, instance, named_by))
        elif rental is None:
            found.append(_stranger(instance))
        elif first[rental.nonce] != instance:
            found.append(
                JudgedRental(RentalVerdict.ORPHAN, "its launch made another instance too", instance, rental)
            )
        else:
            limit_s = math.inf if rental.nonce in bringing else GRACE_S if rental.nonce in held else 0.0
            is_past = now >= rental.intent.deadline + limit_s
            found.append(_ours(instance, rental, rental.nonce in held, rental.intent.run in wanted, is_past))
    missing = [
        rental
        for rental in rentals
        if rental.is_open and first[rental.nonce] is None and rental.nonce not in unmarked
    ]
    found += [_missing(rental, account, now, rental.nonce in held) for rental in missing]
    return tuple(found)


def is_of(instance: Instance, rental: Rental) -> bool:
    """Whether an instance belongs to a rental.

    It carries the rental's nonce and matches the launch's type and region, because a nonce may be copied to
    another instance. After it was once seen with its nonce, which `ready` records, its id is enough, because
    users may rename it.
    """
    if rental.ready is not None and instance.id == rental.instance:
        return True
    intent = rental.intent
    is_alike = instance.type in ("", intent.type) and instance.region in ("", intent.region)
    return instance.nonce == rental.nonce and (is_alike or _is_extra(instance, rental))


def owner_of(instance: Instance, rentals: Iterable[Rental]) -> Rental | None:
    """Return the rental that an instance belongs to, or None for a stranger's instance."""
    return next((rental for rental in rentals if is_of(instance, rental)), None)


def has_any_of(instances: Iterable[Instance], rental: Rental) -> bool:
    """Whether one of these instances belongs to a rental, whichever key rented it."""
    return any(is_of(instance, rental) for instance in instances)


def first_of(rental: Rental, instances: Iterable[Instance]) -> Instance | None:
    """Return the one instance of a rental to keep, or None.

    The recorded instance is kept. Without a record, the older one should be, but the provider does not report
    launch times: choose the most advanced state, then the lowest id, so that all clients choose the same one.
    """
    own = [instance for instance in instances if is_of(instance, rental) and not _is_extra(instance, rental)]
    recorded = [instance for instance in own if instance.id == rental.instance]
    if recorded or rental.instance is not None:
        return next(iter(recorded), None)
    return min(own, key=lambda one: (_FURTHER.index(one.state), one.ip is None, one.id), default=None)


class Loss(NamedTuple):
    """Why a machine will never answer again: the reason of its rental's end, and a message."""

    reason: RentalReason
    words: str


def loss(instance: Instance | None) -> Loss | None:
    """Return why a silent machine is lost, according to the provider's list. None if it may answer again."""
    if instance is None or not instance.is_billed:
        return Loss(RentalReason.GONE, ELSEWHERE)
    if instance.state is InstanceState.PREEMPTED:
        return Loss(RentalReason.PREEMPTED, "the provider has taken the machine away")
    if instance.state is InstanceState.ENDING:
        return Loss(RentalReason.GONE, ELSEWHERE)
    return None


def is_late(instance: Instance, rental: Rental) -> bool:
    """Whether an instance appeared after its rental was given up or had ended. No run will use it."""
    over = (RentalState.ENDED, RentalState.REFUSED, RentalState.UNSEEN)
    return instance.is_billed and is_of(instance, rental) and rental.state in over


def _is_extra(instance: Instance, rental: Rental) -> bool:
    return any(extra.id == instance.id for extra in rental.extras)


def _stranger(instance: Instance) -> JudgedRental:
    why = "another client's" if instance.is_launchers else "not launcher's"
    return JudgedRental(RentalVerdict.STRANGER, why, instance)


def _ours(instance: Instance, rental: Rental, is_held: bool, is_wanted: bool, is_past: bool) -> JudgedRental:
    """Judge the instance that belongs to a rental."""
    if is_late(instance, rental):
        return JudgedRental(RentalVerdict.ORPHAN, "it came after its launch was given up", instance, rental)
    if is_past:
        return JudgedRental(RentalVerdict.DUE, "its time is up", instance, rental)
    if is_held:
        return JudgedRental(RentalVerdict.WANTED, "a process here manages it", instance, rental)
    if rental.state is RentalState.ENDING:
        return JudgedRental(RentalVerdict.ORPHAN, "its termination was begun", instance, rental)
    if is_wanted and rental.state is RentalState.READY:
        return JudgedRental(RentalVerdict.WANTED, f"run {rental.intent.run} needs it", instance, rental)
    if rental.state is RentalState.DISMISSED:
        return JudgedRental(
            RentalVerdict.STRANGER, "dismissed by you, until its time is up", instance, rental
        )
    return JudgedRental(RentalVerdict.ORPHAN, "no process here manages it", instance, rental)


def _missing(rental: Rental, account: str, now: float, is_held: bool) -> JudgedRental:
    """Judge an open rental without an instance in the list, or with only extras."""
    if rental.state not in OPEN:
        return JudgedRental(RentalVerdict.GONE, "the provider does not list its other instance", None, rental)
    if is_held:
        return JudgedRental(RentalVerdict.WANTED, "a process here manages it", None, rental)
    if rental.intent.account != account:
        return JudgedRental(RentalVerdict.ELSEWHERE, "it was rented with another key", None, rental)
    has_appeared = rental.state in (RentalState.READY, RentalState.ENDING)
    since = rental.missing_since
    if has_appeared or (since is not None and now >= since + SETTLE_S):
        return JudgedRental(RentalVerdict.GONE, "the provider does not list it", None, rental)
    return JudgedRental(RentalVerdict.UNSETTLED, "its launch may still appear in the list", None, rental)
