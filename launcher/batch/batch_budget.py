"""The budget of a batch for rented machines: max_cost over all runs, minus spent and reserved money."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.backends.base.rental_choice import check_limited
from launcher.backends.registry import backend_of
from launcher.batch.batch_queue import BatchQueue
from launcher.batch.batch_usage import rentals_for
from launcher.batch.queued_item import ON_THE_WAY
from launcher.config.lookup import Lookup
from launcher.copy.request import Request
from launcher.errors import CardBusyError, RefusedError, UsageError
from launcher.rental.price import Cost
from launcher.rental.renting import dollars
from launcher.runs.launch.resolved_request import understand
from launcher.runs.rented.rental_agreement import choice_for
from launcher.runs.rented.rented_runs import leave_to_keeper, unattended

if TYPE_CHECKING:
    from launcher.rental.rental_settings import RentalSettings
    from launcher.runs.follow.view import View
    from launcher.values.host import Host


def _rentals(names: Iterable[str]) -> Iterator[tuple[Host, RentalSettings]]:
    """Yield those of the named hosts that rent machines, with their settings. Unknown names are left out."""
    known = Lookup().hosts
    for name in dict.fromkeys(names):
        if name in known and (settings := _rental(known[name])) is not None:
            yield known[name], settings


def _rental(host: Host) -> RentalSettings | None:
    return backend_of(host).running.rental(host)


def spending(items: Sequence[Sequence[str]], max_cost: float | None, command: str) -> Cost | None:
    """Return the maximum cost of a batch's rented machines, or None if it rents none.

    `items` are the hosts of each item; `command` is the command that confirms the cost. Raises UsageError for
    a batch that may rent without a max_cost, and RefusedError for a host without a limit per rental.
    """
    rentals = [*_rentals(name for names in items for name in names)]
    if not rentals:
        return None
    for host, _ in rentals:
        check_limited(host)
    names = ", ".join(host.name for host, _ in rentals)
    if max_cost is None:
        raise UsageError(
            f"{names}: its machines are rented, and the {len(items)} items have no common cost limit\n"
            "  in dollars   --max-cost 20     or   max_cost = 20   in the file"
        )
    above = min(settings.confirm_above for _, settings in rentals)
    what = f"{names}: {'the item' if len(items) == 1 else f'the {len(items)} items together'}"
    return Cost(what, round(max_cost * 100), above, command, "a lower max_cost limits it")


class Budget:
    """The rest of a batch's max_cost. Thread-safe."""

    def __init__(self, queue: BatchQueue) -> None:
        """Spend at most the max_cost of this queue's batch."""
        self._queue, self._most = queue, queue.rules.max_cost
        self._lock, self._clearing = threading.Lock(), threading.Lock()
        self._promised: dict[int, int] = {}

    @contextmanager
    def promise(self, number: int, request: Request, view: View) -> Iterator[int | None]:
        """Reserve the cost of the most expensive machine that an item may rent, during its launch.

        Yield it in cents, or None if the host rents no machines. First terminate the useless machines of a
        killed worker, which would be billed and counted until their limit. Raises CardBusyError if the budget
        is too small now, RefusedError if it always will be, and ServiceError.
        """
        host = Lookup().host(request.host)
        if (settings := _rental(host)) is None:
            yield None
            return
        from launcher.rental.settle_account import end_abandoned  # few batches rent

        resolved = understand(request)
        with self._clearing:
            end_abandoned(settings, self._queue.runs().keys(), view)
            self._leave_to_keepers()
        largest = choice_for(resolved).cost.largest
        with self._lock:
            self._check(host.name, largest)
            self._promised[number] = largest
        try:
            yield largest
        finally:
            with self._lock:
                self._promised.pop(number, None)

    def _leave_to_keepers(self) -> None:
        """Have keepers terminate the machines of ended runs whose managing process was killed.

        Raises HostError.
        """
        going = {item.run for item in self._queue.items(*ON_THE_WAY)}
        for local_copy in unattended(self._queue.runs().keys() - going):
            leave_to_keeper(local_copy)

    def _check(self, host: str, cents: int) -> None:
        mend = f"with another limit   launch batch resume {self._queue.name} --failed --max-cost N"
        if self._most is None:  # the host rented no machines when the batch was created
            raise RefusedError(f"{host}: its machines are rented, and the batch has no max_cost\n  {mend}")
        spent, open_cents, launched = 0, 0, set[int]()
        for number, rental in rentals_for(self._queue.runs()):
            if rental.is_open:
                open_cents, launched = open_cents + rental.largest, {*launched, number}
            else:
                spent += rental.cents_at(rental.ended or rental.since)
        open_cents += sum(promise for number, promise in self._promised.items() if number not in launched)
        if spent + open_cents + cents <= round(self._most * 100):
            return
        words = (
            f"{host}: max_cost = {self._most:g} of the batch: {dollars(spent)} spent, {dollars(open_cents)} kept for "
            f"machines that are rented, and this item may cost {dollars(cents)}"
        )
        if open_cents > 0:
            raise CardBusyError(words, "the batch's own rentals")
        raise RefusedError(f"{words}\n  {mend}")
