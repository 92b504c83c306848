"""End a batch: what is queued first, then its runs; queue again what failed; remove it from the list."""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from launcher.errors import LaunchError, RunError, UnreachableError, UsageError
from launcher.runs import batch_index, departures, index, resolve, sent_record
from launcher.runs.batch_item import give_up_machine, why_ended
from launcher.runs.batch_queue import PICTURE, RESULTS, BatchQueue, Work, Worker, take_work, worker_of
from launcher.runs.batch_status import launches, state_of
from launcher.runs.frozen_code import FOLDER as CODE
from launcher.runs.machine_gone import gone
from launcher.runs.mirror import Mirror, mirrors
from launcher.runs.run_desk import connect, open_desk
from launcher.runs.run_files import RunFiles
from launcher.runs.run_stopping import stop as stop_run
from launcher.runs.runs_folder import runs_folder
from launcher.runs.silent_view import SilentView
from launcher.runs.summaries import runs_of
from launcher.runs.tenant import leave_to_keeper
from launcher.values.queued_item import DROPPED, REFUSED, Item, ItemState
from launcher.values.record import State, is_terminal

LOOK_S = 0.5
ANSWERS_S = 30.0
"""How long the process that works a batch may take to drop what is queued."""
ENDS_S = 60.0
"""How long the process that works a batch may take to see the ends of its runs, and to write its results."""
MOST_PLACES = 16
STOPPED = "the batch was stopped"
AGAIN = ("failed", REFUSED, DROPPED, "stopped", "stop-incomplete")
KEPT = (RESULTS, PICTURE)
"""What stays of a batch that is removed."""


class Stopped(NamedTuple):
    """What became of an item that was stopped: its state then, and the problem if its run could not be reached."""

    item: Item
    state: str
    problem: str | None = None


def stop_batch(queue: BatchQueue, *, now: bool, tell: Callable[[str], None]) -> list[Stopped]:
    """End what is queued, then the runs; return what became of each that had not ended.

    A process that works the batch begins nothing more, and is waited for while it launches something, and for ENDS_S at most
    until it has seen the ends of its runs; `tell` says so. Raises UsageError if that process does nothing any more.
    """
    queue.wish_stop("now" if now else "stop")
    before = [item for item in queue.items() if item.state != ItemState.ENDED]
    work = _after_launches(queue, tell)
    try:
        items = [queue.item(item.number) for item in before]
        stopped = _stop_all(queue, items, now=now, is_ours=work is not None)
        if work is None and all(one.state == DROPPED or is_terminal(one.state) for one in stopped):
            _wait_for_worker(queue, tell)
        return stopped
    finally:
        if work is not None:
            queue.mark()
            work.release()


def _after_launches(queue: BatchQueue, tell: Callable[[str], None]) -> Work | None:
    """Return once nothing is being launched: with the right to work the batch, or None while another process follows its runs."""
    deadline, left = time.monotonic() + ANSWERS_S, 0
    while True:
        if (work := take_work(queue)) is not None:
            return work
        beginning, queued = (
            queue.items(ItemState.RESERVED, ItemState.SUBMITTED),
            queue.items(ItemState.QUEUED),
        )
        if not beginning and not queued:
            return None
        again = f"launch batch stop {queue.name}"
        if queue.stop_wish is None:
            raise UsageError(f"{queue.name}: another command has resumed it meanwhile\n  again   {again}")
        if len(queued) != left:  # it ends them one by one
            deadline, left = time.monotonic() + ANSWERS_S, len(queued)
        worker = worker_of(queue)
        if _is_stopped(worker) or (not beginning and time.monotonic() > deadline):
            pid = "PID" if worker is None else worker.pid
            raise UsageError(
                f"{queue.name}: {worker_words(queue)} holds it and does nothing: it may be stopped, as by Ctrl-Z\n"
                f"  let it go on   kill -CONT {pid}     or end it   kill -9 {pid}     then   {again}"
            )
        tell(
            f"{worker_words(queue)} has {launches(len(beginning))} on the way"
            if beginning
            else f"{worker_words(queue)} ends what is queued"
        )
        time.sleep(LOOK_S)


def _wait_for_worker(queue: BatchQueue, tell: Callable[[str], None]) -> None:
    """Return once no process works a batch whose runs have all ended, after ENDS_S at the latest."""
    deadline = time.monotonic() + ENDS_S
    while queue.stop_wish is not None and time.monotonic() < deadline:
        worker = worker_of(queue)
        if worker is None or _is_stopped(worker):
            return
        tell(f"{worker_words(queue)} brings home what its runs have left")
        time.sleep(LOOK_S)


def _is_stopped(worker: Worker | None) -> bool:
    """Whether a process of this machine was stopped, as by Ctrl-Z: what it has begun may wait for ever. Known on Linux only."""
    if worker is None or worker.machine != platform.node():
        return False
    try:
        return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def worker_words(queue: BatchQueue) -> str:
    """Name the process that works a batch."""
    worker = worker_of(queue)
    return "its process" if worker is None else worker.words


def _stop_all(queue: BatchQueue, items: Sequence[Item], *, now: bool, is_ours: bool) -> list[Stopped]:
    """Stop the runs of items, each place by itself: one that does not answer delays no other, and is asked once."""
    places: dict[tuple[str | None, ...], list[Item]] = {}
    for item in items:
        places.setdefault(_place(item), []).append(item)
    stop = functools.partial(_stop_at_a_place, queue, now=now, is_ours=is_ours)
    with ThreadPoolExecutor(MOST_PLACES) as pool:
        found = {one.item.number: one for stopped in pool.map(stop, places.values()) for one in stopped}
    return [found[item.number] for item in items]


def _place(item: Item) -> tuple[str | None, ...]:
    """Return what runs that are at one place have in common: each rented machine is one."""
    entry = index.find(item.run) if item.run else None
    return item.host, None if entry is None else entry.root


def _stop_at_a_place(queue: BatchQueue, items: Sequence[Item], *, now: bool, is_ours: bool) -> list[Stopped]:
    stopped: list[Stopped] = []
    silent: str | None = None
    for item in items:
        if silent is not None and item.run is not None:
            stopped.append(Stopped(item, state_of(item), silent))
            continue
        try:
            stopped.append(_stop(queue, item, now=now, is_ours=is_ours))
        except LaunchError as error:
            problem = str(error).splitlines()[0]
            silent = problem if isinstance(error, UnreachableError) else None
            stopped.append(Stopped(item, state_of(item), problem))
    return stopped


def _stop(queue: BatchQueue, item: Item, *, now: bool, is_ours: bool) -> Stopped:
    """Stop the run of an item, and put its end on record if nobody else does."""
    if item.state == ItemState.ENDED:
        return Stopped(item, item.outcome or "ended")
    state, why, problem = _stop_run(queue.name, item, now=now)
    if is_ours and (state == DROPPED or is_terminal(state)):
        if item.state in (ItemState.RESERVED, ItemState.SUBMITTED) and state != DROPPED:
            item = queue.step(_submitted(queue, item), ItemState.CONFIRMED)
        item = queue.step(item, ItemState.ENDED, outcome=state, why=why)
    return Stopped(item, state, problem)


def _submitted(queue: BatchQueue, item: Item) -> Item:
    return queue.step(item, ItemState.SUBMITTED) if item.state == ItemState.RESERVED else item


def _stop_run(name: str, item: Item, *, now: bool) -> tuple[str, str, str | None]:
    """Stop the run of an item; return its state then, DROPPED for one that never began, why, and what is left of it."""
    if item.run is None:
        return DROPPED, STOPPED, None
    mirror = Mirror(item.run, runs_folder())
    is_bound = index.knows(item.run)
    entry = mirror.entry
    if entry is not None and entry.batch != name:
        raise RunError(
            f"{item.run} is not a run of the batch {name}\n  to stop it   launch stop {mirror.short}"
        )
    if not is_bound and item.state != ItemState.CONFIRMED:
        give_up_machine(item.run, SilentView())
        return DROPPED, STOPPED, None
    known = mirror.state()
    if known is not None and is_terminal(known.state):
        leave_to_keeper(mirror)
        return str(known.state), why_ended(known) or STOPPED, None
    if (words := gone(mirror)) is not None:
        return State.FAILED, words.splitlines()[0], None
    # A run that the index has lost is still where it was begun.
    with open_desk(mirror.host(), mirror) if is_bound else connect(resolve.host(item.host)) as desk:
        if not runs_of(desk, [item.run]):
            give_up_machine(item.run, SilentView())
            return DROPPED, STOPPED, None
        row = stop_run(desk, item.run, now=now, grace_s=mirror.plan().stop_grace_s)
    leave_to_keeper(mirror)
    return str(row.summary.state), STOPPED, row.problem


def queue_again(queue: BatchQueue) -> list[Item]:
    """Queue again what failed, was stopped, refused or dropped; return these items. The caller works the batch.

    An item whose run a person has had go on elsewhere is not: it would be trained twice.
    """
    again = [item for item in queue.items(ItemState.ENDED) if item.outcome in AGAIN and not _goes_on(item)]
    found = [queue.step(item._replace(tried=()), ItemState.QUEUED) for item in again]
    queue.mark()
    return found


def _goes_on(item: Item) -> bool:
    return item.run is not None and departures.departure_of(Mirror(item.run, runs_folder())) is not None


class Removed(NamedTuple):
    """What stays of a batch that was removed: its runs, their number, and its table and picture.

    `with_code` are the runs that keep their code, since they may go on elsewhere.
    """

    runs: int
    kept: list[Path]
    with_code: int


def remove_batch(queue: BatchQueue) -> Removed:
    """Remove a batch whose items have ended; return what stays. Raises UsageError for one that goes on."""
    work = take_work(queue)
    if work is None:
        raise UsageError(
            f"{queue.name}: {worker_words(queue)} works it\n  first   launch batch stop {queue.name}"
        )
    try:
        items = queue.items()
        if left := sum(item.state != ItemState.ENDED for item in items):
            raise UsageError(
                f"{queue.name}: {left} of its items have not ended\n  first   launch batch stop {queue.name}"
            )
        identity = queue.identity()
        queue.close()
        with_code = _keep_code(queue.folder)
        kept = _keep(queue.folder)
        queue.files.remove_tree()
        batch_index.forget(identity, queue.folder)
    except OSError as error:
        raise RunError(f"{error.filename or queue.folder}: {error.strerror}") from error
    finally:
        work.release()
    return Removed(sum(item.run is not None for item in items), kept, with_code)


def _keep_code(folder: Path) -> int:
    """Let each run that has not succeeded keep the code that it was sent from this folder; return how many did. Raises OSError.

    It may go on at another host while its own is silent, and then what is here is all there is. Also a run that has gone on
    from one of the batch has its code from there.
    """
    unfinished = [
        mirror for mirror in mirrors() if (state := mirror.state()) is None or state.state != State.SUCCEEDED
    ]
    return sum(sent_record.keep(mirror, folder / CODE) > 0 for mirror in unfinished)


def _keep(folder: Path) -> list[Path]:
    """Move the table and the picture of a batch out of its folder; return where they are. Raises OSError."""
    when = time.strftime("%y%m%d-%H%M%S")
    batches, kept = RunFiles(folder.parent), []
    for name in KEPT:
        if batches.is_file(f"{folder.name}/{name}"):
            kept.append(folder.with_name(f"{folder.name}-{when}-{name}"))
            batches.rename(f"{folder.name}/{name}", kept[-1])
    return kept
