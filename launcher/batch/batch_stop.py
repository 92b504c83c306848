"""Stop a batch: first the queued items, then the runs."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from launcher.batch.batch_item import why_ended
from launcher.batch.batch_queue import BatchQueue, BatchRequest, Work, take_work, worker_of, worker_words
from launcher.batch.batch_status import launches, state_of
from launcher.batch.queued_item import DROPPED, NEVER_BEGAN, UNENDED, Item, ItemState
from launcher.config.lookup import Lookup
from launcher.copy import index
from launcher.copy.local_copy import LocalCopy
from launcher.copy.runs_folder import runs_folder
from launcher.errors import LaunchError, RunError, UnreachableError, UsageError
from launcher.rental.settle_account import give_up_machine
from launcher.runs.follow.summaries import runs_of
from launcher.runs.follow.view import NullView
from launcher.runs.rented.machine_gone import gone
from launcher.runs.rented.rented_runs import leave_to_keeper
from launcher.runs.run_client import connect, open_client
from launcher.runs.run_stopping import stop as stop_run
from launcher.values.record import State, is_terminal

LOOK_S = 0.5
ANSWERS_S = 30.0
"""The seconds that a batch's worker may take to drop the queued items."""
ENDS_S = 60.0
"""The seconds that a batch's worker may take to see the ends of its runs and write the results."""
MAX_PLACES = 16
STOPPED = "the batch was stopped"


class Stopped(NamedTuple):
    """A stopped item: its state, the reason, and the problem if its run could not be reached."""

    item: Item
    state: str
    why: str | None = None
    problem: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the item never began, or its run has ended."""
        return self.state in NEVER_BEGAN or is_terminal(self.state)


def stop_batch(queue: BatchQueue, *, now: bool, tell: Callable[[str], None]) -> list[Stopped]:
    """Drop the queued items, then stop the runs. Return an entry for each item that had not ended.

    A worker of the batch starts nothing more. Wait for its launches, and at most ENDS_S until it has seen the
    ends of its runs; `tell` receives the reason of the wait. Raises UsageError if the worker does not
    respond.
    """
    queue.wish(BatchRequest.STOP)
    before = queue.items(*UNENDED)
    work = _after_launches(queue, tell)
    if work is None:
        stopped = _stop_all(queue, before, now=now)
        if all(one.has_ended for one in stopped):
            _wait_for_worker(queue, tell)
        return stopped
    try:
        stopped = _stop_all(queue, before, now=now)
        return [_recorded(queue, one) for one in stopped]
    finally:
        queue.mark()
        work.release()


def _recorded(queue: BatchQueue, one: Stopped) -> Stopped:
    """Record the end of an item that no worker records."""
    if not one.has_ended or one.item.state == ItemState.ENDED:
        return one
    return one._replace(item=queue.step(one.item, ItemState.ENDED, outcome=one.state, why=one.why))


def _after_launches(queue: BatchQueue, tell: Callable[[str], None]) -> Work | None:
    """Wait until no item is being launched.

    Return the right to work on the batch, or None while another process follows its runs.
    """
    deadline, left = time.monotonic() + ANSWERS_S, 0
    while (work := take_work(queue)) is None:
        beginning = queue.count(ItemState.RESERVED)
        queued = queue.count(ItemState.QUEUED)
        if not beginning and not queued:
            return None
        again = f"launch batch stop {queue.name}"
        if not queue.wishes(BatchRequest.STOP):
            raise UsageError(
                f"{queue.name}: another command has resumed it in the meantime\n  again   {again}"
            )
        if queued != left:  # the worker ends them one by one
            deadline, left = time.monotonic() + ANSWERS_S, queued
        worker, words = worker_of(queue), worker_words(queue)
        if (worker is not None and worker.is_stopped) or (not beginning and time.monotonic() > deadline):
            pid = "PID" if worker is None else worker.pid
            raise UsageError(
                f"{queue.name}: {words} holds it and does nothing: it may be stopped, as by Ctrl-Z\n"
                f"  let it continue   kill -CONT {pid}     or end it   kill -9 {pid}     then   {again}"
            )
        tell(f"{words} {f'has {launches(beginning)} on the way' if beginning else 'ends the queued items'}")
        time.sleep(LOOK_S)
    return work


def _wait_for_worker(queue: BatchQueue, tell: Callable[[str], None]) -> None:
    """Wait until a batch whose runs have ended has no worker, for at most ENDS_S."""
    deadline = time.monotonic() + ENDS_S
    while queue.wishes(BatchRequest.STOP) and time.monotonic() < deadline:
        worker = worker_of(queue)
        if worker is None or worker.is_stopped:
            return
        tell(f"{worker.words} downloads the remaining files of its runs")
        time.sleep(LOOK_S)


def _stop_all(queue: BatchQueue, before: Sequence[Item], *, now: bool) -> list[Stopped]:
    """Stop the runs of items in their current state, in parallel over the hosts.

    A host that does not answer delays no other, and is asked once.
    """
    items = [queue.item(item.number) for item in before]
    places: defaultdict[tuple[str | None, ...], list[Item]] = defaultdict(list)
    for item in items:
        entry = index.find(item.run) if item.run else None
        places[item.host, None if entry is None else entry.root].append(item)  # one per rented machine
    stop = functools.partial(_stop_at_a_place, queue.name, now=now)
    with ThreadPoolExecutor(MAX_PLACES) as pool:
        found = {one.item.number: one for stopped in pool.map(stop, places.values()) for one in stopped}
    return [found[item.number] for item in items]


def _stop_at_a_place(batch: str, items: Sequence[Item], *, now: bool) -> list[Stopped]:
    stopped: list[Stopped] = []
    silence: UnreachableError | None = None
    for item in items:
        try:
            if silence is not None and item.run is not None:
                raise silence
            stopped.append(_stop(batch, item, now=now))
        except LaunchError as error:
            silence = error if isinstance(error, UnreachableError) else None
            stopped.append(Stopped(item, state_of(item), problem=str(error).splitlines()[0]))
    return stopped


def _stop(batch: str, item: Item, *, now: bool) -> Stopped:
    """Stop the run of an item.

    Drop an item that never began. Raises HostError, RunError for another batch's run.
    """
    if item.state == ItemState.ENDED:
        return Stopped(item, item.outcome or "ended", item.why)
    dropped = Stopped(item, DROPPED, STOPPED)
    if item.run is None:
        return dropped
    local_copy = LocalCopy(item.run, runs_folder())
    entry, is_bound = local_copy.entry, index.knows(item.run)
    if entry is not None and entry.batch != batch:
        raise RunError(
            f"{item.run} is not a run of the batch {batch}\n  to stop it   launch stop {local_copy.short}"
        )
    if not is_bound and item.state != ItemState.CONFIRMED:
        give_up_machine(item.run, NullView())
        return dropped
    known = local_copy.state()
    if known is not None and is_terminal(known.state):
        leave_to_keeper(local_copy)
        return Stopped(item, known.state, why_ended(known) or STOPPED)
    if (words := gone(local_copy)) is not None:
        return Stopped(item, State.FAILED, words.splitlines()[0])
    # A run missing in the index is still on the host where it began.
    with (
        open_client(local_copy.host(), local_copy)
        if is_bound
        else connect(Lookup().host(item.host)) as client
    ):
        if not runs_of(client, [item.run]):
            give_up_machine(item.run, NullView())
            return dropped
        row = stop_run(client, item.run, now=now, grace_s=local_copy.record.plan().stop_grace_s)
    leave_to_keeper(local_copy)
    return Stopped(item, row.summary.state, STOPPED, row.problem)
