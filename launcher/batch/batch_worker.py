"""The worker of a batch: starts items, follows their runs, and takes over from a worker that died.

Without a worker, running items continue and queued items wait.
"""

from __future__ import annotations

import contextlib
import queue as threads
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from launcher.backends.base.backend import Backend
from launcher.backends.registry import backend_of
from launcher.base.delayed_interrupts import HeldInterrupts
from launcher.base.text import first_of
from launcher.batch.batch_budget import Budget
from launcher.batch.batch_item import (
    Attempt,
    BeginResult,
    ItemContext,
    begin,
    follow_item,
    items_before,
    run_of,
    settle,
    why_ended,
)
from launcher.batch.batch_placement import FAILURES, Decision, HostAvailability, decide
from launcher.batch.batch_queue import BatchQueue, BatchRequest
from launcher.batch.batch_status import launches
from launcher.batch.item_view import ItemView
from launcher.batch.queued_item import DROPPED, REFUSED, Item, ItemState
from launcher.config.lookup import Lookup
from launcher.copy import move_records
from launcher.copy.local_copy import LocalCopy
from launcher.copy.runs_folder import runs_folder
from launcher.errors import BadFileError, LaunchError, UnknownNameError, UnreachableError
from launcher.runs.run_client import over_shared_connection
from launcher.upload.frozen_code import FrozenCode
from launcher.values.record import RunState, State, is_terminal

LOOK_S = 0.5
"""The interval in seconds for drawing the table and checking the queue for requests."""
NOTE_S = 5.0
"""The interval in seconds for recording what items wait for."""
BACK_OFF_S = (5.0, 10.0, 20.0, 40.0, 60.0)
"""How long a busy or silent host is skipped, in seconds: after the first time in a row, the second, and so on."""
SETTLE_S = (0.5, 1.0, 2.0, *BACK_OFF_S)
"""The seconds before a host is asked again for a run that may have begun there."""
SILENT_TRIES = 3
"""How often in a row a host may be silent before a batch that needs only such hosts gives up."""
RECOVERIES = 3
LOG = "batch.log"
AGAIN = ("failed", REFUSED, DROPPED, "stopped", "stop-incomplete")
"""The outcomes of items that are queued again at the user's request."""


class BatchOutcome(StrEnum):
    """How the work on a batch ended: nothing is left, the user left, or the remaining hosts do not answer."""

    OVER = "over"
    LEFT = "left"
    SILENT = "silent"


class BatchView(Protocol):
    """The display of a batch during its work."""

    def show(self, items: list[Item], live: dict[int, ItemView]) -> None:
        """Show all items in their current state."""

    def changed(self, item: Item) -> None:
        """Show an item's new state."""

    def note(self, text: str) -> None:
        """Show a message about the batch."""


class _LeaveError(Exception):
    """Raised in a follower thread when this process stops its work on the batch."""


class _Host:
    """The worker's state of a host: until when and why it is skipped, and its failures in a row."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.unknown: str | None = None
        """Why this host has no settings, or None if it has some. Its runs are followed in both cases."""
        host = None
        try:
            host = Lookup().host(name)
        except UnknownNameError as error:
            self.unknown = str(error).splitlines()[0]
        backend = Backend() if host is None else backend_of(host)
        self.is_rented = host is not None and backend.running.rental(host) is not None
        self.line = None if host is None or self.is_rented else backend.open_shared_connection(host)
        self.upkeep = backend.upkeep
        self.closed_until = 0.0
        self.why: str | None = None
        self.times = 0
        self.failures = 0
        self.silent = 0
        self.most: int | None = None

    def close(self, why: str, *, is_silent: bool) -> float:
        """Skip the host for a while, longer each time in a row. Return the number of seconds."""
        wait_s = BACK_OFF_S[min(self.times, len(BACK_OFF_S) - 1)]
        self.closed_until = time.monotonic() + wait_s
        self.times += 1
        self.silent = self.silent + 1 if is_silent else 0
        self.why = why
        return wait_s

    def open(self) -> None:
        """Stop skipping the host: a run has begun or ended there."""
        self.closed_until, self.times, self.silent, self.why = 0.0, 0, 0, None

    def note_end(self, *, has_failed_early: bool) -> bool:
        """Count a run that has ended there. Return whether the host is excluded from now on."""
        self.failures = self.failures + 1 if has_failed_early else 0
        self.open()
        return self.failures == FAILURES

    @property
    def is_excluded(self) -> bool:
        """Whether the batch starts nothing on the host: after FAILURES early failures in a row, or if no host has this name now."""
        return self.failures >= FAILURES or self.unknown is not None

    def place(self, going: int, unbegun: str | None, *, is_beginning: bool) -> HostAvailability:
        """Return the host's availability for the placement.

        `unbegun` is an item on this host that does not run yet. `is_beginning`: an item is being launched
        there.
        """
        if self.unknown is not None:
            return HostAvailability(self.unknown, going)
        if self.is_excluded:
            words = f"{FAILURES} runs in a row failed there before their first step"
            return HostAvailability(f"{self.name} is excluded: {words}", going)
        if (why := self.upkeep.wait_reason(self.name, unbegun, is_launching=is_beginning)) is not None:
            return HostAvailability(why, going)
        if time.monotonic() < self.closed_until:
            return HostAvailability(self.why, going)
        return HostAvailability(None, going, self.most)


class BatchWorker:
    """One process's work on a batch. `run` returns when its work is done."""

    def __init__(self, queue: BatchQueue, view: BatchView) -> None:
        """Work on this queue. This process must hold its lock."""
        self._queue, self._view, self._rules = queue, view, queue.rules
        self._items = {item.number: item for item in queue.items()}
        self._before = {
            number: before for number, item in self._items.items() if (before := items_before(item))
        }
        self._hosts: dict[str, _Host] = {}
        for item in self._items.values():
            for host in (*item.hosts, *([item.host] if item.host else [])):
                if host not in self._hosts:
                    self._hosts[host] = _Host(host)
        self._live: dict[int, ItemView] = {}
        self._beginning: dict[int, str] = {}
        self._news: threads.Queue[Callable[[], None]] = threads.Queue()
        self._leaves = threading.Event()
        self._log_lock = threading.Lock()
        self._budget = Budget(queue)
        self._code = FrozenCode(queue.folder, self._say_in_view)
        self._recovered: dict[int, int] = {}
        self._noted: dict[int, str | None] = {}
        self._noted_at = 0.0
        self.left_by: int | None = None
        """The signal with which the user left the batch."""

    def run(self) -> BatchOutcome:
        """Work until nothing is left, the user stops the batch, or Ctrl-C. Runs continue after Ctrl-C."""
        held = HeldInterrupts()
        try:
            for item in self._items.values():
                if item.state == ItemState.RESERVED:
                    self._start(item, self._settle)
                elif item.state == ItemState.CONFIRMED:
                    self._note_cards(item)
                    self._start(item, self._follow, None)
            while True:
                if held.first is not None:
                    return self._leave(held)
                if self._queue.wishes(BatchRequest.STOP):
                    self._drop_queued("the batch was stopped")
                self._queue_again()
                decision = self._decide()
                if (outcome := self._outcome(decision)) is not None:
                    self._note_waits(is_last=True)
                    return outcome
                for item, host in decision.begin:
                    self._beginning[item.number] = host
                    self._start(item, self._begin, host)
                self._note_waits()
                self._view.show([*self._items.values()], self._live)
                self._take_news()
        except BaseException:  # e.g. a full disk or a closed terminal
            with contextlib.suppress(Exception):
                self._let_go(held)
            raise
        finally:
            held.release()
            for one in self._hosts.values():
                if one.line is not None:
                    one.line.close()

    # The main thread

    def _take_news(self) -> None:
        """Wait LOOK_S for messages of the threads. Handle all of them."""
        with contextlib.suppress(threads.Empty):
            self._news.get(timeout=LOOK_S)()
            while True:
                self._news.get_nowait()()

    def _decide(self) -> Decision:
        going: dict[str, int] = {}
        unbegun: dict[str, str] = {}
        for number, view in self._live.items():
            item = self._items[number]
            if item.host is not None:
                going[item.host] = going.get(item.host, 0) + 1
                if view.state is None or view.state.state in (State.RESERVED, State.PREPARING):
                    unbegun[item.host] = item.name
        waiting = [
            item
            for item in self._items.values()
            if item.state == ItemState.QUEUED and item.number not in self._live
        ]
        if (failures := self._too_many_failures()) is not None:
            self._drop_queued(failures)
            waiting = []
        begun_at = set(self._beginning.values())
        places = {
            name: host.place(going.get(name, 0), unbegun.get(name), is_beginning=name in begun_at)
            for name, host in self._hosts.items()
        }
        held = self._held(waiting)
        waiting = [
            item
            for item in waiting
            if item.number not in held and self._items[item.number].state == ItemState.QUEUED
        ]
        decision = decide(waiting, places, going=len(self._live), most=self._rules.max_parallel)
        decision = decision._replace(waits={**decision.waits, **held})
        for number, why in decision.waits.items():
            if self._items[number].why != why:
                self._items[number] = self._items[number]._replace(why=why)
        return decision

    def _held(self, waiting: list[Item]) -> dict[int, str]:
        """Return why items cannot be submitted yet, because others must be first: Slurm knows these by their jobs.

        An item after one that never began is dropped.
        """
        by_name = {item.name: item for item in self._items.values()}
        held: dict[int, str] = {}
        for item in waiting:
            for name, condition in self._before.get(item.number, ()):
                before = by_name[name]
                if before.state == ItemState.ENDED and before.run is None and condition == "ok":
                    why = f"not begun: {name} never began"
                    self._changed(self._queue.step(item, ItemState.ENDED, outcome=DROPPED, why=why))
                    break
                if before.state in (ItemState.QUEUED, ItemState.RESERVED):
                    held[item.number] = f"waits until {name} is submitted"
                    break
        return held

    def _queue_again(self) -> None:
        """Queue the failed items again, if another command has requested that."""
        if not self._queue.take_back(BatchRequest.AGAIN):
            return
        for item in queue_again(self._queue):
            for host in item.hosts:
                self._hosts[host].failures = 0  # the host is tried again
            self._changed(item)

    def _note_waits(self, *, is_last: bool = False) -> None:
        """Record what items wait for, every NOTE_S and at the end, for other commands."""
        if not is_last and time.monotonic() - self._noted_at < NOTE_S:
            return
        self._noted_at = time.monotonic()
        waits = {n: item.why for n, item in self._items.items() if item.state == ItemState.QUEUED}
        for number, view in self._live.items():
            if self._items[number].state == ItemState.CONFIRMED:
                waits[number] = view.waits_for
                self._items[number] = self._items[number]._replace(why=view.waits_for)
        if changed := {n: why for n, why in waits.items() if self._noted.get(n) != why}:
            self._queue.note(changed)
            self._noted.update(changed)

    def _outcome(self, decision: Decision) -> BatchOutcome | None:
        """Return the outcome if nothing is left to do, or nothing can be done now.

        None if the work continues.
        """
        if self._live or decision.begin:
            return None
        if self._queue.wishes(BatchRequest.STOP):
            return BatchOutcome.OVER
        queued = [item for item in self._items.values() if item.state == ItemState.QUEUED]
        if not queued:
            return BatchOutcome.OVER
        hosts = {host for item in queued for host in item.hosts if host not in item.tried}
        if all(self._hosts[host].is_excluded for host in hosts):
            return BatchOutcome.OVER
        if all(self._hosts[host].is_excluded or self._hosts[host].silent >= SILENT_TRIES for host in hosts):
            silent = [name for name, host in self._hosts.items() if host.silent >= SILENT_TRIES]
            self._view.note(f"asked {SILENT_TRIES} times, without success: {', '.join(silent)}")
            return BatchOutcome.SILENT
        return None

    def _too_many_failures(self) -> str | None:
        """Return why no further item starts, after max_failures failed runs. None below that."""
        most = self._rules.max_failures
        failed = [
            item.name
            for item in self._items.values()
            if item.outcome in ("failed", REFUSED, State.STOP_INCOMPLETE)
        ]
        if most is None or len(failed) < most:
            return None
        return f"not begun: {first_of(failed)} failed, and max_failures is {most}"

    def _drop_queued(self, why: str) -> None:
        for item in [*self._items.values()]:
            if item.state == ItemState.QUEUED and item.number not in self._live:
                self._changed(self._queue.step(item, ItemState.ENDED, outcome=DROPPED, why=why))

    def _changed(self, item: Item) -> None:
        self._items[item.number] = item
        self._view.changed(item)

    def _leave(self, held: HeldInterrupts) -> BatchOutcome:
        """Release the follower threads after a signal."""
        self.left_by, held.first = held.first, None
        if count := len(self._beginning):
            self._view.note(f"waits for {launches(count)} on the way; Ctrl-C again leaves them")
        self._let_go(held)
        if left := self._with_rented():
            words = "its rented machine is still billed, and no process will terminate it"
            self._view.note(f"{', '.join(left)}: {words}   launch reconcile")
        return BatchOutcome.LEFT

    def _let_go(self, held: HeldInterrupts) -> None:
        """Wait for running launches and for the handover of rented machines, or until another signal comes.

        A failure during the wait, e.g. of a closed terminal, must not stop the handover of other machines.
        The first failure is raised at the end.
        """
        self._leaves.set()
        failure: Exception | None = None
        while held.first is None and (self._beginning or self._with_rented()):
            try:
                self._take_news()
            except Exception as error:  # noqa: BLE001 - a bug too
                failure = failure or error
        if failure is not None:
            raise failure

    def _with_rented(self) -> list[str]:
        """Return the names of launched or followed items with rented machines."""
        found = []
        for number, view in self._live.items():
            item = self._items[number]
            host = self._hosts[self._beginning.get(number) or item.host or ""]
            if host.is_rented or view.has_rented:
                found.append(item.name)
        return found

    # Threads

    def _start(self, item: Item, work: Callable[..., None], *more: object) -> None:
        """Work on an item in a thread. An error ends the work on this item, not on the batch."""
        view = self._live[item.number] = ItemView(lambda text: self._say(item, text))

        def run() -> None:
            try:
                work(item, view, *more)
            except _LeaveError:
                self._tell(self._left, item)
            except LaunchError as error:
                self._tell(self._needs_person, item, str(error))
            except Exception as error:  # a bug: the item must not look as if it continued
                self._tell(self._needs_person, item, f"{type(error).__name__}: {error}")
                raise

        threading.Thread(target=run, name=f"item {item.name}", daemon=True).start()

    def _tell(self, what: Callable[..., None], *values: object) -> None:
        """Run a function in the main thread."""
        self._news.put(lambda: what(*values))

    def _begin(self, item: Item, view: ItemView, host: str) -> None:
        self._after(begin(self._context(host), item, host, view), view, host)

    def _context(self, host: str | None) -> ItemContext:
        place = self._hosts[host or ""]
        opening = None if place.line is None else over_shared_connection(place.line)
        return ItemContext(self._queue, self._budget, opening, self._say_in_view, self._code, place.is_rented)

    def _say_in_view(self, text: str) -> None:
        """Show a message about the batch, from the main thread."""
        self._tell(self._view.note, text)

    def _settle(self, item: Item, view: ItemView) -> None:
        tries = 0
        while True:
            attempt = settle(self._context(item.host), item, view, tries)
            if attempt.verdict != BeginResult.UNSETTLED:
                self._after(attempt, view, item.host or "")
                return
            view.lost_for = attempt.words
            tries += 1
            if self._leaves.wait(SETTLE_S[min(tries, len(SETTLE_S)) - 1]):
                raise _LeaveError

    def _after(self, attempt: Attempt, view: ItemView, host: str) -> None:
        self._tell(self._take_attempt, attempt, host)
        if attempt.verdict == BeginResult.UNSETTLED:
            self._settle(attempt.item, view)
        elif attempt.verdict == BeginResult.BEGAN:
            self._follow(attempt.item, view, attempt)

    def _follow(self, item: Item, view: ItemView, attempt: Attempt | None) -> None:
        started = attempt.started if attempt is not None else None
        while True:
            state = follow_item(
                self._context(item.host),
                item,
                started,
                view,
                self._watch,
                pulls=self._rules.artifacts == "all",
            )
            started = None
            if is_terminal(state.state):
                break
            recovered = self._recovered.get(item.number, 0)
            if state.state == State.WAITING or recovered >= RECOVERIES:
                self._tell(self._needs_person, item, why_ended(state) or state.state)
                return
            self._recovered[item.number] = recovered + 1
        self._tell(self._ended, item, state)

    def _watch(self, _error: UnreachableError | None) -> None:
        if self._leaves.is_set():
            raise _LeaveError

    def _say(self, item: Item, text: str) -> None:
        """Write a line about an item to the batch's log. A failed write is ignored."""
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        with self._log_lock, contextlib.suppress(OSError), self._queue.files.open(LOG, "ab") as file:
            file.writelines(f"{when}  {item.name}  {line}\n".encode() for line in text.splitlines())

    # Messages of the threads, handled in the main thread

    def _take_attempt(self, attempt: Attempt, name: str) -> None:
        item, verdict, host = attempt.item, attempt.verdict, self._hosts[name]
        self._beginning.pop(item.number, None)
        if verdict not in (BeginResult.BEGAN, BeginResult.UNSETTLED):
            del self._live[item.number]
        self._changed(item)
        if verdict == BeginResult.BEGAN:
            host.open()
            self._note_cards(item)
        elif verdict in (BeginResult.BUSY, BeginResult.SILENT):
            wait_s = host.close(attempt.words, is_silent=verdict == BeginResult.SILENT)
            if verdict == BeginResult.SILENT and host.silent < SILENT_TRIES:
                self._view.note(f"{attempt.words}   {name} is asked again in {wait_s:.0f} s")

    def _note_cards(self, item: Item) -> None:
        """Limit the runs on a host that allocates no cards.

        Only the batch itself can prevent overload there.
        """
        host = self._hosts[item.host or ""]
        with contextlib.suppress(BadFileError):
            allocation = LocalCopy(run_of(item), runs_folder()).whole_plan().allocation
            is_for_all = not allocation.cards and allocation.how != "scheduled"
            if is_for_all and host.upkeep.is_shared:
                host.most = self._rules.max_parallel or 1

    def _left(self, item: Item) -> None:
        self._beginning.pop(item.number, None)
        self._live.pop(item.number, None)

    def _needs_person(self, item: Item, why: str) -> None:
        host = self._beginning.pop(item.number, None)
        self._live.pop(item.number, None)
        self._queue.note({item.number: why})
        self._changed(self._queue.item(item.number))
        if host is not None and self._items[item.number].state == ItemState.QUEUED:
            self._hosts[host].close(why.splitlines()[0], is_silent=True)  # do not try the host again at once

    def _ended(self, item: Item, state: RunState) -> None:
        view = self._live.pop(item.number)
        host = self._hosts[item.host or ""]
        has_failed = state.state in (State.FAILED, State.STOP_INCOMPLETE)
        if host.note_end(has_failed_early=has_failed and view.step is None):
            self._view.note(
                f"{item.host}: {FAILURES} runs in a row failed before their first step; nothing more is begun there"
                f"   try it again   launch batch resume {self._queue.name}"
            )
        self._changed(
            self._queue.step(
                self._items[item.number], ItemState.ENDED, outcome=state.state, why=why_ended(state)
            )
        )


def queue_again(queue: BatchQueue) -> list[Item]:
    """Queue again the items that failed, were stopped, refused or dropped. Return them.

    The caller must hold the worker's lock. An item whose run the user has resumed elsewhere is left out,
    since it would be trained twice.
    """
    again = [item for item in queue.items(ItemState.ENDED) if item.outcome in AGAIN and not _has_moved(item)]
    found = [queue.step(item._replace(tried=()), ItemState.QUEUED) for item in again]
    queue.mark()
    return found


def _has_moved(item: Item) -> bool:
    return (
        item.run is not None and move_records.recorded_move_of(LocalCopy(item.run, runs_folder())) is not None
    )
