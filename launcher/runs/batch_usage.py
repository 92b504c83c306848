"""What a batch has taken until now: hours of its runs, hours of GPUs, and what was rented. No host is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from launcher.runs.batch_queue import BatchQueue
from launcher.runs.runs_folder import runs_folder

if TYPE_CHECKING:
    from launcher.runs.mirror import Mirror

HOUR_S = 3600.0


class Took(NamedTuple):
    """How long runs have taken together, in seconds. A run that was given four GPUs counts four times in `gpu_s`."""

    run_s: float = 0.0
    gpu_s: float = 0.0

    def plus(self, other: Took) -> Took:
        """Return both together."""
        return Took(self.run_s + other.run_s, self.gpu_s + other.gpu_s)


class Used(NamedTuple):
    """What each item has taken with all of its tries, by its number: time, cents for what was rented, and how many tries began.

    One that never began is in none of them.
    """

    took: Mapping[int, Took]
    cents: Mapping[int, int]
    tries: Mapping[int, int]

    @property
    def total(self) -> Took:
        """The time of all items together."""
        total = Took()
        for took in self.took.values():
            total = total.plus(took)
        return total


NOTHING = Used({}, {}, {})


class Usage:
    """Looks up what a batch has taken. What ended before is not read again."""

    def __init__(self, queue: BatchQueue) -> None:
        """Look into the queue and the copies of its runs here."""
        self._queue = queue
        self._ended: dict[str, Took] = {}

    def now(self, items: Collection[int] | None = None) -> Used:
        """Return what each item, or each of some numbers, has taken until now, as far as its host was heard."""
        took: dict[int, Took] = {}
        tries = Counter[int]()
        runs = self._queue.runs(items)
        for run, number in runs.items():
            if (one := self._took(run)) is not None:
                took[number] = took.get(number, Took()).plus(one)
                tries[number] += 1
        return Used(took, self._cents(runs), tries)

    def _took(self, run: str) -> Took | None:
        if run in self._ended:
            return self._ended[run]
        from launcher.runs.mirror import Mirror  # what was not begun has none
        from launcher.values.states import is_terminal

        mirror = Mirror(run, runs_folder())
        state = mirror.state()
        if state is None or (seconds := mirror.took_s(state)) is None:
            return None
        took = Took(seconds, seconds * _cards(mirror))
        if is_terminal(state.state):
            self._ended[run] = took
        return took

    def _cents(self, runs: Mapping[str, int]) -> dict[int, int]:
        """Return what was rented for each item has cost until now, or its end; nothing for one without a rental."""
        if self._queue.max_cost is None:  # without it nothing is rented
            return {}
        from launcher.rental.service_clock import ServiceClock
        from launcher.runs.tenancies import ledger

        found, now = dict[int, int](), ServiceClock().likely()
        for rental in ledger().rentals():
            if (number := runs.get(rental.intent.run)) is not None:
                found[number] = found.get(number, 0) + rental.cents_at(rental.ended or now)
        return found


def _cards(mirror: Mirror) -> int:
    """Return how many GPUs the plan of a run gives it."""
    allocation = mirror.files.read_json("plan.json").get("allocation")
    cards = allocation.get("cards") if isinstance(allocation, dict) else None
    return cards if isinstance(cards, int) else 0
