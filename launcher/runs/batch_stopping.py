"""End a batch: what is queued first, then its runs; queue again what failed; remove it from the list."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import NamedTuple

from launcher.errors import LaunchError, UsageError
from launcher.runs.batch_item import give_up_machine
from launcher.runs.batch_queue import BatchQueue, Work, take_work, worker_of
from launcher.runs.control import runs_of
from launcher.runs.control import stop as stop_run
from launcher.runs.mirror import Mirror
from launcher.runs.run_desk import open_desk
from launcher.runs.runs_folder import runs_folder
from launcher.runs.silent_view import SilentView
from launcher.values.batch import DROPPED, REFUSED, Item, ItemState
from launcher.values.record import is_terminal

LOOK_S = 0.5
AGAIN = ("failed", REFUSED, DROPPED, "stop-incomplete")


class Stopped(NamedTuple):
    """What became of an item that was stopped: its state then, and the problem if its run could not be reached."""

    item: Item
    state: str
    problem: str | None = None


def stop_batch(queue: BatchQueue, *, now: bool, tell: Callable[[str], None]) -> list[Stopped]:
    """End what is queued, then the runs; return what became of each that had not ended.

    A process that works the batch begins nothing more, and is waited for while it launches something; `tell` says so.
    """
    queue.wish_stop("now" if now else "stop")
    before = [item for item in queue.items() if item.state != ItemState.ENDED]
    work = _after_launches(queue, tell)
    try:
        return [_stop(queue, queue.item(item.number), now=now, is_ours=work is not None) for item in before]
    finally:
        if work is not None:
            queue.mark()
            work.release()


def _after_launches(queue: BatchQueue, tell: Callable[[str], None]) -> Work | None:
    """Return once nothing is being launched: with the right to work the batch, or None while another process follows its runs."""
    while True:
        if (work := take_work(queue)) is not None:
            return work
        beginning = queue.items(ItemState.RESERVED, ItemState.SUBMITTED)
        if not beginning and not queue.items(ItemState.QUEUED):
            return None
        tell(
            f"waits for {len(beginning)} launches that are on their way"
            if beginning
            else "its worker ends what is queued"
        )
        time.sleep(LOOK_S)


def _stop(queue: BatchQueue, item: Item, *, now: bool, is_ours: bool) -> Stopped:
    """Stop the run of an item, and put its end on record if nobody else does."""
    if item.state == ItemState.ENDED:
        return Stopped(item, item.outcome or "ended")
    try:
        state, problem = _stop_run(item, now=now)
    except LaunchError as error:
        return Stopped(item, str(item.state), str(error).splitlines()[0])
    if is_ours and (state == DROPPED or is_terminal(state)):
        if item.state in (ItemState.RESERVED, ItemState.SUBMITTED) and state != DROPPED:
            item = queue.step(_submitted(queue, item), ItemState.CONFIRMED)
        item = queue.step(item, ItemState.ENDED, outcome=state, why="the batch was stopped")
    return Stopped(item, state, problem)


def _submitted(queue: BatchQueue, item: Item) -> Item:
    return queue.step(item, ItemState.SUBMITTED) if item.state == ItemState.RESERVED else item


def _stop_run(item: Item, *, now: bool) -> tuple[str, str | None]:
    """Stop the run of an item; return its state then, DROPPED for one that never began, and what is left of it."""
    if item.run is None:
        return DROPPED, None
    mirror = Mirror(item.run, runs_folder())
    if not (mirror.folder / "client.json").is_file():
        give_up_machine(item.run, SilentView())
        return DROPPED, None
    known = mirror.state()
    if known is not None and is_terminal(known.state):
        return str(known.state), None
    with open_desk(mirror.host(), mirror) as desk:
        if not runs_of(desk, [item.run]):
            give_up_machine(item.run, SilentView())
            return DROPPED, None
        row = stop_run(desk, item.run, now=now, grace_s=mirror.plan().stop_grace_s)
    return str(row.summary.state), row.problem


def queue_again(queue: BatchQueue) -> int:
    """Queue again what failed, was refused or was dropped; return how many items that are."""
    again = [item for item in queue.items(ItemState.ENDED) if item.outcome in AGAIN]
    for item in again:
        queue.step(item._replace(tried=()), ItemState.QUEUED)
    queue.mark()
    return len(again)


def remove_batch(queue: BatchQueue) -> int:
    """Remove a batch whose items have ended; return how many runs of it stay. Raises UsageError for one that goes on."""
    if (worker := worker_of(queue)) is not None:
        raise UsageError(
            f"{queue.name}: process {worker.pid} on {worker.machine} works it\n  first   launch batch stop {queue.name}"
        )
    items = queue.items()
    if left := sum(item.state != ItemState.ENDED for item in items):
        raise UsageError(
            f"{queue.name}: {left} of its items have not ended\n  first   launch batch stop {queue.name}"
        )
    queue.close()
    shutil.rmtree(queue.folder)
    return sum(item.run is not None for item in items)
