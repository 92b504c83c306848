"""Rent an instance, wait until it is ready, terminate it. Each step is written to the ledger before its call.

Whatever happens in between, to the answers or to this process, `reconcile` can find this user's instances
through the ledger.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterable
from typing import NamedTuple

from launcher.errors import BadFileError, RefusedError, ServiceError, UnknownOutcomeError
from launcher.rental.lease.rental_lock import RentalLock
from launcher.rental.ledger import RentalLedger, new_nonce, usual_folder
from launcher.rental.provider import REFUSED, Provider, is_passing, module_of
from launcher.rental.rental_settings import RentalSettings
from launcher.rental.renting import (
    Instance,
    InstanceOffer,
    InstanceState,
    Intent,
    LaunchOptions,
    Rental,
    RentalReason,
    RentalState,
    dollars,
    run_cents,
)
from launcher.rental.service_clock import ServiceClock, clock_of
from launcher.rental.verdict import SETTLE_S, UNMARKED, first_of, is_late, is_of

LAUNCHES = 3
"""The maximum number of launches for one rental that get no answer and create no instance."""
NOT_SENT = "it was interrupted before it was sent"
"""The reason of a launch that was interrupted before the request."""
POLL_S, BOOT_POLL_S = 5.0, 10.0
END_S = 600.0
"""The seconds that an instance may stay listed after its termination was requested."""


class Rented(NamedTuple):
    """A rental and the lock by which this process manages it. Another process may inherit the lock."""

    rental: Rental
    lock: RentalLock


class Termination(NamedTuple):
    """An instance to terminate. `rental` is None for another client's instance that the user named."""

    instance: str
    why: str
    rental: Rental | None

    @property
    def cents(self) -> int | None:
        """The recorded cost of the instance, or None if none is recorded yet."""
        if self.rental is None:
            return None
        extras = {extra.id: extra.cents for extra in self.rental.extras}
        return self.rental.cents if self.instance == self.rental.instance else extras.get(self.instance)


def open_account(settings: RentalSettings) -> ProviderAccount:
    """Return the account of this user's key at a provider. No call is made yet.

    Raises BadFileError, ServiceAuthError.
    """
    clock = clock_of(settings.provider)
    provider = module_of(settings.provider).connect(settings.api, clock.note)
    return ProviderAccount(provider, RentalLedger(usual_folder()), clock, platform.node() or "client")


class ProviderAccount:
    """An account at a provider, and this user's rentals there."""

    def __init__(self, provider: Provider, ledger: RentalLedger, clock: ServiceClock, client: str) -> None:
        """Use this account. `client` is this machine's name in the tags of its instances."""
        self.provider, self.ledger, self.clock = provider, ledger, clock
        self._client = client
        self._unwritten: dict[str, Rental] = {}

    @property
    def page(self) -> str:
        """The web page where users see the account's instances and can terminate them."""
        return module_of(self.provider.name).INSTANCES_PAGE

    def learn_time(self) -> None:
        """Ask for the service's time, unless it is known since this machine's boot."""
        self.clock.learn(self.provider.instances)

    def close(self) -> None:
        """Close the connections."""
        self.provider.close()

    def rentals(self) -> tuple[Rental, ...]:
        """Return this user's rentals at the provider, oldest first.

        Other providers' instances may have the same ids.
        """
        return tuple(one for one in self.ledger.rentals() if one.intent.provider == self.provider.name)

    def known(self, rental: Rental) -> Rental:
        """Return a rental's entry in the ledger, or the last known one if the ledger fails."""
        if rental.nonce in self._unwritten:
            return self._unwritten[rental.nonce]
        with contextlib.suppress(OSError, BadFileError):
            return self.ledger.rental(rental.nonce)
        return rental

    def cost(self, rental: Rental) -> str:
        """Return the maximum cost so far of all machines rented for the rental's run."""
        others = [one for one in self.ledger.rentals() if one.nonce != rental.nonce]
        return dollars(run_cents([rental, *others], rental.intent.run, self.clock.now()))

    def find(self, rental: Rental) -> Instance | None:
        """Return a rental's instance, or None if the account no longer has it. Raises ServiceError."""
        found = first_of(rental, self.provider.instances())
        if found is None and rental.instance is not None:
            found = self.provider.instance(rental.instance)  # a list may lack existing instances
        self._note_price(rental, found)
        return found

    def _note_price(self, rental: Rental, found: Instance | None) -> None:
        """Record a higher price per hour.

        The whole rental is counted at that price, so the cost is never too low.
        """
        if found is not None and (found.cents_per_hour or 0) > self.known(rental).intent.cents_per_hour:
            with contextlib.suppress(OSError, BadFileError):
                self.ledger.note_price(rental.nonce, found.cents_per_hour or 0)

    def rent(
        self, offer: InstanceOffer, region: str, run: str, deadline: float, setup: LaunchOptions
    ) -> Rented:
        """Launch an instance for a run. Return it as soon as the provider has accepted it.

        Raises ServiceError if the launch was refused; nothing is rented then. Raises UnknownOutcomeError if the
        outcome is unknown, and RefusedError if the ledger cannot be written.
        """
        for _ in range(LAUNCHES):
            intent = Intent(
                provider=self.provider.name,
                account=self.provider.account,
                run=run,
                nonce=new_nonce(),
                client=self._client,
                type=offer.type,
                region=region,
                cents_per_hour=offer.cents_per_hour,
                time=self.clock.now(),
                deadline=deadline,
            )
            try:
                lock = self.ledger.open(intent)
            except BaseException as error:
                if not isinstance(error, Exception):
                    self._note_unsent(intent)
                raise
            try:
                rental = self._launch(intent, setup)
            except BaseException:
                lock.release()
                raise
            if rental is not None:
                return Rented(rental, lock)
            lock.release()
        words = (
            f"{self.provider.name}: {LAUNCHES} launches of {offer.type} got no answer, and made no instance"
        )
        raise UnknownOutcomeError(
            self.provider.name, RentalReason.GONE, f"{words}\n  look again in a while   launch reconcile"
        )

    def wait_until_ready(
        self, rental: Rental, limit_s: float, report: Callable[[Rental, Instance | None], None]
    ) -> Instance:
        """Wait until an instance accepts logins. `report` is called at each check.

        An instance that is not ready in time, or is taken away, is terminated. Raises ServiceError with its
        cost.
        """
        until = min(self.clock.now() + limit_s, rental.intent.deadline)
        seen: Instance | None = None
        while True:
            now = self.clock.now()
            instance = self._look_for(rental)
            report(rental, instance)
            if (
                instance is not None
                and (price := instance.cents_per_hour or 0) > rental.intent.cents_per_hour
            ):
                offered, rental = rental.intent.cents_per_hour, self.ledger.note_price(rental.nonce, price)
                why = f"an hour costs {dollars(price)}, and not {dollars(offered)} as was offered"
                raise self._given_up(rental, RentalReason.PRICE, why)
            if instance is not None and instance.is_ready:
                self.ledger.step(rental.nonce, RentalState.READY, self.clock.now())
                return instance
            if instance is not None and instance.state is InstanceState.PREEMPTED:
                raise self._given_up(rental, RentalReason.PREEMPTED, "the provider has taken it away")
            if instance is None and (seen is not None or now >= rental.since + SETTLE_S):
                raise self._given_up(rental, RentalReason.GONE, "the provider does not list it any more")
            if now >= until:
                word = "not listed yet" if instance is None else f"'{instance.word}'"
                why = f"it is still {word} after {now - rental.since:.0f} s"
                raise self._given_up(rental, RentalReason.BOOT_TIMEOUT, why)
            seen = instance or seen
            self.clock.sleep(min(BOOT_POLL_S, max(0.0, until - now)))

    def end(self, rental: Rental, why: str) -> Rental:
        """Terminate a rental's instances. Return once the provider no longer lists them.

        Raises ServiceError if one is still billed.
        """
        rental = self.known(rental)
        ids = dict.fromkeys([rental.instance] if rental.instance else [])
        try:
            listed = self.provider.instances()
            self._note_gone_extras(rental.intent.run, listed)
            self._note_price(rental, first_of(rental, listed))
            rental = self.known(rental)
            unmarked = [one.id for one in listed if one.id in ids and not is_of(one, rental)]
            ids |= dict.fromkeys(one.id for one in listed if is_of(one, rental) and one.is_billed)
        except ServiceError as error:
            if not is_passing(error) or not ids:
                raise
            unmarked = []
        for one in unmarked:
            del ids[one]  # the answer to the launch may have been wrong
        left = self.end_all([Termination(one, why, rental) for one in ids])
        ended = self.known(rental)
        if not unmarked and not left:
            return ended
        cost = self.cost(ended)
        if unmarked:
            words = f"{unmarked[0]} is left alone: {UNMARKED}; {cost} so far if it is yours"
            mend = f"look at the provider's page; to end it   launch reconcile --adopt {unmarked[0]}"
        else:
            names = ", ".join(ending.instance for ending in left)
            words = f"{names} is still listed after its termination: {cost} so far"
            mend = "try again   launch reconcile     or end it on the provider's page"
        name = self.provider.name
        raise ServiceError(name, RentalReason.STILL_BILLED, f"{name}: {words}\n  {mend}")

    def end_all(self, endings: Iterable[Termination]) -> tuple[Termination, ...]:
        """Terminate some instances. Return those still listed after END_S.

        The answer to a terminate call is not enough: an instance is gone once the provider's list lacks it, and
        the call is repeated until the instance begins to end. A new instance that the provider does not know may
        still appear. If one termination is refused, or the ledger
        cannot be written, the others continue. Raises ServiceError once only instances are left that the
        account may not terminate.
        """
        left = {ending.instance: self._begin(ending) for ending in endings}
        until = self.clock.now() + END_S
        is_ending, is_known = set[str](), set[str]()
        while left:
            forbidden: dict[str, ServiceError] = {}
            for instance_id in left.keys() - is_ending:
                try:
                    is_there = self.provider.terminate(instance_id)
                    if is_there or not _may_appear(left[instance_id].rental, self.clock.now()):
                        is_known.add(instance_id)
                except ServiceError as error:  # other errors may be temporary
                    if error.reason in REFUSED:
                        forbidden[instance_id] = error
            if forbidden and forbidden.keys() == left.keys():
                raise next(iter(forbidden.values()))
            self.clock.sleep(POLL_S)
            listed = self._listed()
            if listed is not None:
                billed = {one.id: one for one in listed if one.is_billed}
                is_ending = {one.id for one in billed.values() if one.state is InstanceState.ENDING}
                for instance_id in (left.keys() & is_known) - billed.keys():
                    self._finish(left.pop(instance_id))
            if self.clock.now() >= until:
                break
        return tuple(left.values())

    def _launch(self, intent: Intent, setup: LaunchOptions) -> Rental | None:
        """Make one launch, whose intent is on disk. Return None if no instance appeared in time."""
        try:
            ids = self.provider.launch(intent, setup)
        except UnknownOutcomeError as error:
            return self._settle(intent, error)
        except ServiceError as error:
            with contextlib.suppress(OSError):
                self.ledger.step(intent.nonce, RentalState.REFUSED, self.clock.now(), why=error.reason)
            raise
        except BaseException:
            if not self.provider.has_sent_launch:
                self._note_unsent(intent)
            raise
        now = self.clock.now()
        try:
            return self.ledger.step(intent.nonce, RentalState.LAUNCHED, now, instance=ids[0])
        except (OSError, BadFileError) as error:
            rental = Rental(intent=intent, state=RentalState.LAUNCHED, instance=ids[0], launched=now)
            self._unwritten[intent.nonce] = rental
            self.end(rental, "it could not be recorded")
            raise RefusedError(f"{self.ledger.words(error)}\n  the new rental was terminated") from error

    def _note_unsent(self, intent: Intent) -> None:
        """Record that a launch was interrupted before the request, if its intent is on disk."""
        with contextlib.suppress(OSError, BadFileError):
            self.ledger.step(intent.nonce, RentalState.REFUSED, self.clock.now(), why=NOT_SENT)

    def _settle(self, intent: Intent, lost: UnknownOutcomeError) -> Rental | None:
        """Look for the instance of a launch without an answer. Return None if none appears in SETTLE_S.

        Only a list that is read after SETTLE_S proves that none exists. Raises `lost` if none can be read.
        """
        began = self.clock.now()
        while True:
            now = self.clock.now()
            rental = self.ledger.rental(intent.nonce)
            instances = self._listed()
            if instances is not None and (first := first_of(rental, instances)) is not None:
                rental = self.ledger.step(intent.nonce, RentalState.LAUNCHED, now, instance=first.id)
                self._end_others(rental, first, instances)
                return rental
            if instances is not None and now >= began + SETTLE_S:
                self.ledger.step(intent.nonce, RentalState.UNSEEN, now, why=lost.reason)
                return None
            if now >= began + 2 * SETTLE_S:
                raise lost
            self.clock.sleep(POLL_S)

    def _look_for(self, rental: Rental) -> Instance | None:
        """Return a rental's instance from the current list.

        Terminate its extra instances, and late instances of other rentals.
        """
        rentals = self.rentals()
        while (instances := self._listed()) is None:
            if self.clock.now() >= rental.intent.deadline:
                return None
            self.clock.sleep(POLL_S)
        for instance in instances:
            late = next((one for one in rentals if is_late(instance, one)), None)
            if late is not None and instance.state is not InstanceState.ENDING:
                self._begin(Termination(instance.id, "it came after its launch was given up", late))
                self._terminate(instance.id)
        current = next((one for one in rentals if one.nonce == rental.nonce), rental)
        first = first_of(current, instances)
        self._end_others(current, first, instances)
        self._note_gone_extras(rental.intent.run, instances)
        return first if first is None or first.is_billed else None

    def _listed(self) -> tuple[Instance, ...] | None:
        """Return the account's instances, or None if the provider gives no usable answer now."""
        try:
            return self.provider.instances()
        except ServiceError as error:
            if not is_passing(error):
                raise
            return None

    def _terminate(self, instance_id: str) -> None:
        """Ask for the termination of an instance. Without an answer, a later check asks again."""
        try:
            self.provider.terminate(instance_id)
        except ServiceError as error:
            if not is_passing(error):
                raise

    def _end_others(self, rental: Rental, first: Instance | None, listed: Iterable[Instance]) -> None:
        """Ask for the termination of all instances of a launch except its first one."""
        for other in listed:
            is_other = is_of(other, rental) and (first is None or other.id != first.id)
            if is_other and other.is_billed and other.state is not InstanceState.ENDING:
                self.ledger.note_extra(rental.nonce, other.id)
                self._terminate(other.id)

    def _note_gone_extras(self, run: str, listed: Iterable[Instance]) -> None:
        """Record the cost of the extra instances of a run's launches once they are no longer listed."""
        billed, now = {one.id for one in listed if one.is_billed}, self.clock.now()
        with contextlib.suppress(OSError, BadFileError):  # a later command records it
            for rental in self.rentals():
                for extra in rental.extras if rental.intent.run == run else ():
                    if extra.cents is None and extra.id not in billed:
                        self.ledger.note_extra(rental.nonce, extra.id, rental.time_cents(now))

    def _begin(self, ending: Termination) -> Termination:
        """Record that an instance is about to be terminated."""
        if ending.rental is None:
            return ending
        rental = ending.rental
        with contextlib.suppress(OSError, BadFileError):  # it is terminated anyway
            rental = self.ledger.step(
                rental.nonce,
                RentalState.ENDING,
                self.clock.now(),
                instance=rental.instance or ending.instance,
                why=ending.why,
            )
            if rental.instance != ending.instance:
                rental = self.ledger.note_extra(rental.nonce, ending.instance)
        return ending._replace(rental=rental)

    def _finish(self, ending: Termination) -> None:
        """Record that an instance is gone, and its maximum cost."""
        rental, now = ending.rental, self.clock.now()
        if rental is None:
            return
        cost = rental.time_cents(now)
        try:
            if rental.instance == ending.instance:
                self.ledger.step(rental.nonce, RentalState.ENDED, now, cents=cost)
            else:
                self.ledger.note_extra(rental.nonce, ending.instance, cost)
        except (OSError, BadFileError):  # a later command records it
            over = {"state": RentalState.ENDED, "ended": now, "cents": cost, "why": ending.why}
            if rental.instance == ending.instance:
                self._unwritten[rental.nonce] = rental.model_copy(update=over)

    def _given_up(self, rental: Rental, reason: RentalReason, why: str) -> ServiceError:
        """Terminate a failed rental. Return the error to raise."""
        cost = self.cost(self.end(rental, reason))
        words = f"{self.provider.name}: {rental.intent.type} for {rental.intent.run}: {why}; it was ended, and cost at most {cost}"
        words += "\n  nothing is rented for it now: the same command tries again; another type or region   launch offers"
        return ServiceError(self.provider.name, reason, words)


def _may_appear(rental: Rental | None, now: float) -> bool:
    """Whether the provider may not show a rental's instance yet. One that was ready has been shown."""
    if rental is None or rental.ready is not None:
        return False
    return now < (rental.launched or rental.since) + SETTLE_S
