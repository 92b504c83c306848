"""Clients that rent and are killed, and what became of their instances, by the stand-in's own account of starts and ends."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from testbed.client import is_gone, until
from testbed.lambda_service import LambdaService
from testbed.lambda_state import Instance

from launcher.rental.renting import Rental

ROUNDS = int(os.environ.get("LAUNCH_RENTS", "1"))
WHOLE_ROUNDS = int(os.environ.get("LAUNCH_WHOLE_RENTS", "1"))
"""How often a client is killed at each point, without machines and with them: `make rents` asks for more than once."""
HOWS = ("unheard", "accepted", "answered")
"""Before a request is accepted, which it then is not; once it is, and before its answer is sent; up to 0.3 s after that."""
MAX_LATER_S = 0.3


class Killer:
    """Kills one of some clients at its own Nth request, whichever comes there first; then `then` is called. How: see HOWS."""

    def __init__(
        self,
        service: LambdaService,
        number: int,
        how: str,
        dice: random.Random,
        *,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for `begin`: until then requests are held."""
        self.victim: int | None = None
        self.has_killed = False
        self._service, self._number, self._how, self._then = service, number, how, then
        self._later_s = MAX_LATER_S * dice.random() ** 3
        self._clients: list[int] = []
        self._begun, self._done = threading.Event(), threading.Event()
        self._counts: Counter[int] = Counter()
        self._lock = threading.Lock()
        setattr(service, "before" if how == "unheard" else "after", self._at)

    def begin(self, *clients: int) -> None:
        """Watch these processes, which have just been started."""
        self._clients += clients
        self._begun.set()

    def end(self) -> None:
        """Watch no more; return once what was begun is done."""
        if self.victim is not None:
            assert self._done.wait(30)
        self._service.before = self._service.after = lambda _line: None

    def _at(self, line: dict[str, Any]) -> bool:
        assert self._begun.wait(30)
        sender = sender_of(line["port"], self._clients)
        with self._lock:
            if sender is None or self.victim is not None:
                return False
            self._counts[sender] += 1
            if self._counts[sender] != self._number:
                return False
            self.victim = sender
        if self._how == "answered":
            threading.Timer(self._later_s, self._kill).start()
            return False
        self._kill()
        return self._how == "unheard"

    def _kill(self) -> None:
        assert self.victim is not None
        self.has_killed = kill(self.victim)
        self._then()
        self._done.set()


def kill(pid: int) -> bool:
    """Kill a process, and return once it runs no more; return whether it had not ended by itself."""
    was_alive = not is_gone(pid)
    if was_alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until(lambda: is_gone(pid), "the end of a killed process")
    return was_alive


def sender_of(port: int, clients: Iterable[int]) -> int | None:
    """Return the process that has the connection from a local port; None if it is none of these."""
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    sockets = {f"socket:[{line[9]}]" for line in lines if int(line[1].rpartition(":")[2], 16) == port}
    for pid in clients:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                if os.readlink(link) in sockets:
                    return pid
    return None


class Witness:
    """What became of instances, by the stand-in's own account."""

    def __init__(self, service: LambdaService, strangers: Sequence[Instance]) -> None:
        """Know which instances are not ours: the others are."""
        self.service = service
        self._strangers = {one.id: one for one in strangers}

    @property
    def ours(self) -> list[Instance]:
        """All of ours, dead or alive."""
        return [one for one in self.service.state.machines.values() if one.id not in self._strangers]

    @property
    def alive(self) -> list[Instance]:
        """Ours that nobody has asked to end."""
        return [one for one in self.service.alive() if one.id not in self._strangers]

    @property
    def doubled(self) -> set[str]:
        """The runs that have had two instances at the same time."""
        return {
            one.tag("launch:run")
            for one, other in combinations(self.ours, 2)
            if one.tag("launch:run") == other.tag("launch:run")
            and one.launched < _end(other)
            and other.launched < _end(one)
        }

    def check_single(self) -> None:
        """No run has two instances now."""
        runs = Counter(one.tag("launch:run") for one in self.alive)
        assert not [run for run, count in runs.items() if count > 1], runs

    def check_over(self, rentals: Sequence[Rental]) -> None:
        """None of ours lives, no stranger's was touched, and what each of ours has cost is in the ledger."""
        assert self.alive == []
        assert {one.id for one in self.service.alive()} == self._strangers.keys()
        assert not self.service.terminated() & self._strangers.keys()
        assert not [rental for rental in rentals if rental.is_open]
        now, known = self.service.state.clock.now(), _costs(rentals)
        assert [one.id for one in self.ours if known.get(one.id, -1) < one.cents(now)] == []
        assert self.service.state.violations == []


@dataclass
class Tally:
    """What rounds at one point came to."""

    rounds: int
    killed: int = 0
    started: int = 0
    ended: int = 0
    touched: int = 0
    doubled: int = 0
    billed: int = 0
    known: int = 0
    extra: int = 0

    def add(self, witness: Witness, rentals: Sequence[Rental], *, killed: bool) -> None:
        """Count a round that is over, and was judged."""
        service = witness.service
        now = service.state.clock.now()
        self.killed += killed
        self.started += len(witness.ours)
        self.ended += len([one for one in witness.ours if not one.is_alive(now)])
        self.touched += len(service.terminated() - {one.id for one in witness.ours})
        self.doubled += len(witness.doubled)
        self.billed += sum(one.cents(now) for one in witness.ours)
        self.known += sum(rental.cents_at(now) for rental in rentals)
        self.extra += sum(extra.cents or 0 for rental in rentals for extra in rental.extras)

    def record(self, record_property: Callable[[str, object], None], where: str, point: str) -> None:
        """Put a row of the table on record."""
        record_property("where", where)
        record_property("point", point)
        record_property("killed", f"{self.killed} of {self.rounds}")
        for name in ("started", "ended", "touched", "doubled"):
            record_property(name, getattr(self, name))
        record_property("billed", f"${self.billed / 100:.2f}")
        record_property("known", f"${self.known / 100:.2f}")
        record_property("extra", f"${self.extra / 100:.2f}")


def _end(one: Instance) -> float:
    """When an instance's end was accepted, or it was taken away."""
    ends = [end for end in (one.asked_to_end, one.gone) if end is not None]
    return min(ends, default=float("inf"))


def _costs(rentals: Iterable[Rental]) -> dict[str, int]:
    """Return what the ledger says that each instance has cost."""
    found = {}
    for rental in rentals:
        found |= {extra.id: extra.cents for extra in rental.extras if extra.cents is not None}
        if rental.instance is not None and rental.cents is not None:
            found[rental.instance] = rental.cents
    return found
