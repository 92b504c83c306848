"""The usage of a batch so far: hours of runs, GPU hours, and rental costs. No host is contacted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from launcher.batch.batch_queue import BatchQueue
from launcher.copy.runs_folder import runs_folder

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.rental.renting import Rental

HOUR_S = 3600.0


class Used(NamedTuple):
    """The usage of an item, or of a whole batch: seconds, rental costs in cents, and the number of tries.

    All tries count. A run with four GPUs counts four times in `gpu_s`. `cents` is None if nothing was rented.
    """

    run_s: float = 0.0
    gpu_s: float = 0.0
    cents: int | None = None
    tries: int = 0

    def plus(self, other: Used) -> Used:
        """Return the sum of this usage and another."""
        cents = [one.cents for one in (self, other) if one.cents is not None]
        times = self.run_s + other.run_s, self.gpu_s + other.gpu_s
        return Used(*times, sum(cents) if cents else None, self.tries + other.tries)


def total(used: Mapping[int, Used]) -> Used:
    """Return the usage of all items together."""
    found = Used()
    for one in used.values():
        found = found.plus(one)
    return found


class Usage:
    """Computes the usage of a batch. Ended runs are read only once."""

    def __init__(self, queue: BatchQueue) -> None:
        """Read the queue and the local copies of its runs."""
        self._queue = queue
        self._ended: dict[str, Used] = {}

    def now(self, items: Collection[int] | None = None) -> dict[int, Used]:
        """Return the usage so far of all items, or of the given ones, as of their hosts' last answers."""
        found, runs = defaultdict[int, Used](Used), self._queue.runs(items)
        for run, number in runs.items():
            if (one := self._of_run(run)) is not None:
                found[number] = found[number].plus(one)
        if self._queue.rules.max_cost is not None:  # without max_cost nothing is rented
            from launcher.rental.service_clock import clock_of

            for number, rental in rentals_for(runs):
                until = rental.ended or clock_of(rental.intent.provider).likely()
                found[number] = found[number].plus(Used(cents=rental.cents_at(until)))
        return dict(found)

    def _of_run(self, run: str) -> Used | None:
        if run in self._ended:
            return self._ended[run]
        from launcher.copy.local_copy import LocalCopy  # an item that was not begun has no local copy
        from launcher.values.states import is_terminal

        local_copy = LocalCopy(run, runs_folder())
        state = local_copy.state()
        if state is None or (seconds := local_copy.took_s()) is None:
            return None
        used = Used(seconds, seconds * _cards(local_copy), tries=1)
        if is_terminal(state.state):
            self._ended[run] = used
        return used


def rentals_for(runs: Mapping[str, int]) -> Iterator[tuple[int, Rental]]:
    """Yield all rentals for some runs, with the number of the run's item."""
    from launcher.rental.records import ledger

    for rental in ledger().rentals():
        if (number := runs.get(rental.intent.run)) is not None:
            yield number, rental


def _cards(local_copy: LocalCopy) -> int:
    """Return the number of GPUs in a run's plan."""
    allocation = local_copy.files.read_json("plan.json").get("allocation")
    cards = allocation.get("cards") if isinstance(allocation, dict) else None
    return cards if isinstance(cards, int) else 0
