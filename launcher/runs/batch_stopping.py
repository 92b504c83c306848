"""End a batch: what is queued first, then its runs; queue again what failed; remove it from the list."""

from __future__ import annotations

import shutil
from typing import NamedTuple

from launcher.errors import LaunchError, RunError, UsageError
from launcher.runs.batch_queue import BatchQueue, take_work, worker_of
from launcher.runs.control import stop as stop_run
from launcher.runs.mirror import Mirror
from launcher.runs.run_desk import open_desk
from launcher.runs.runs_folder import runs_folder
from launcher.values.batch import DROPPED, REFUSED, Item, ItemState
from launcher.values.record import is_terminal

AGAIN = ("failed", REFUSED, DROPPED, "stop-incomplete")


class Stopped(NamedTuple):
    """What became of an item that was stopped: its state then, and the problem if its run could not be reached."""

    item: Item
    state: str
    problem: str | None = None


def stop_batch(queue: BatchQueue, *, now: bool) -> list[Stopped]:
    """End what is queued, then the runs; return what became of each that had not ended."""
    queue.wish_stop("now" if now else "stop")
    work = take_work(queue)
    stopped = []
    try:
        for item in queue.items():
            if item.state == ItemState.QUEUED and work is not None:
                queue.step(item, ItemState.ENDED, outcome=DROPPED, why="the batch was stopped")
                stopped.append(Stopped(item, DROPPED))
            elif item.state == ItemState.QUEUED:
                stopped.append(Stopped(item, DROPPED))  # its worker does
            elif item.state != ItemState.ENDED:
                stopped.append(_stop(queue, item, now=now, is_ours=work is not None))
    finally:
        if work is not None:
            queue.mark()
            work.release()
    return stopped


def _stop(queue: BatchQueue, item: Item, *, now: bool, is_ours: bool) -> Stopped:
    """Stop the run of an item. One that may have been submitted and is nowhere has not begun."""
    if item.run is None:
        return Stopped(item, str(item.state))
    mirror = Mirror(item.run, runs_folder())
    try:
        host = mirror.host()
    except RunError:
        if is_ours:
            queue.step(
                item, ItemState.ENDED, outcome=DROPPED, why="the batch was stopped before its run began"
            )
        return Stopped(item, DROPPED)
    known = mirror.state()
    if known is not None and is_terminal(known.state):
        return Stopped(item, str(known.state))
    try:
        with open_desk(host, mirror) as desk:
            row = stop_run(desk, item.run, now=now, grace_s=mirror.plan().stop_grace_s)
    except LaunchError as error:
        return Stopped(item, str(known.state if known else item.state), str(error).splitlines()[0])
    state = row.summary.state
    if is_ours and is_terminal(state) and item.state == ItemState.CONFIRMED:
        queue.step(item, ItemState.ENDED, outcome=str(state), why="the batch was stopped")
    return Stopped(item, str(state), row.problem)


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
    left = [item for item in items if item.state not in (ItemState.ENDED, ItemState.QUEUED)]
    if left:
        raise UsageError(
            f"{queue.name}: {len(left)} of its runs may still go on\n  first   launch batch stop {queue.name}"
        )
    queue.close()
    shutil.rmtree(queue.folder)
    return sum(item.run is not None for item in items)
