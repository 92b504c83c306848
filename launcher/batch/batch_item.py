"""One item of a batch from placement to end: launch, search after a crash, follow, download.

Each function runs in its own thread. It records each action in the queue before the action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from pydantic import TypeAdapter

from launcher.backends.registry import backend_of
from launcher.base import untrusted_json
from launcher.base.delayed_interrupts import NoInterrupts
from launcher.batch.batch_budget import Budget
from launcher.batch.batch_queue import BatchQueue
from launcher.batch.item_view import ItemView
from launcher.batch.queued_item import REFUSED, Item, ItemState
from launcher.config import secret_values
from launcher.config.lookup import Lookup
from launcher.copy import index
from launcher.copy.local_copy import LocalCopy
from launcher.copy.request import Request
from launcher.copy.run_id import new_run_id
from launcher.copy.runs_folder import runs_folder
from launcher.errors import (
    AgentError,
    CardBusyError,
    HostError,
    LaunchError,
    MachineGoneError,
    RefusedError,
    RunError,
    UnreachableError,
    UsageError,
)
from launcher.rental import records
from launcher.rental.settle_account import give_up_machine
from launcher.runs.follow.evidence import why_failed
from launcher.runs.follow.following import Watch, finish
from launcher.runs.follow.sessions import follow_sessions
from launcher.runs.follow.summaries import runs_of
from launcher.runs.launch import cards
from launcher.runs.launch.launching import Started, launch
from launcher.runs.rented.machine_gone import gone
from launcher.runs.rented.rented_runs import lease_for, local_copy_of
from launcher.runs.resume.recovering import recover_to_follow
from launcher.runs.run_client import Opening, connect, open_client
from launcher.transport.client.host_client import HostClient
from launcher.upload.frozen_code import FrozenCode
from launcher.values.host import Host
from launcher.values.record import RunState, State, is_terminal

if TYPE_CHECKING:
    from launcher.rental.lease.rental_lease import Lease

RUN_EXISTS = "run-exists"


class ItemContext(NamedTuple):
    """The context of the work on an item.

    It holds the queue, the budget, the function that connects to its host, the function that shows messages
    to the user, and the frozen code. `is_rented`: the run gets a rented machine.
    """

    queue: BatchQueue
    budget: Budget
    opening: Opening | None
    tell: Callable[[str], None]
    code: FrozenCode
    is_rented: bool


class BeginResult(StrEnum):
    """The outcome of an attempt to launch an item."""

    BEGAN = "began"
    BUSY = "busy"
    SILENT = "silent"
    REFUSED = "refused"
    UNSETTLED = "unsettled"


class Attempt(NamedTuple):
    """An attempt to launch an item: the resulting item, the outcome, and the reason in words.

    `started` is the run that began, or None if it was found on its host.
    """

    item: Item
    verdict: BeginResult
    words: str = ""
    started: Started | None = None


def run_of(item: Item) -> str:
    """Return the id of an item's run. Raises RunError for an item without a run."""
    if item.run is None:
        raise RunError(f"{item.name}: has no run yet")
    return item.run


def request_of(item: Item) -> Request:
    """Return the launch request of an item, without a host."""
    return TypeAdapter(Request).validate_json(item.request)


def items_before(item: Item) -> list[tuple[str, str]]:
    """Return the names of the items that must end before an item, each with `ok` or `any`."""
    written = untrusted_json.decode(item.request).get("after") or ()
    return [(name, condition) for name, _, condition in (one.partition(":") for one in written)]


def _runs_before(queue: BatchQueue, item: Item) -> list[str]:
    """Return the runs that an item has to wait for, without those that have ended as asked."""
    if not (before := items_before(item)):
        return []
    by_name = {one.name: one for one in queue.items()}
    asked = [(by_name[name], condition) for name, condition in before]
    return [
        f"{run_of(one)}:{condition}"
        for one, condition in asked
        if not (one.state == ItemState.ENDED and (condition == "any" or one.outcome == State.SUCCEEDED))
    ]


def begin(context: ItemContext, item: Item, host: str, view: ItemView) -> Attempt:
    """Launch a queued item on a host. The run's id is on disk before anything is sent."""
    item = context.queue.step(item, ItemState.RESERVED, run=new_run_id(item.name), host=host)
    return submit(context, item, view)


def submit(context: ItemContext, item: Item, view: ItemView) -> Attempt:
    """Launch an item that has its run's id and its host."""
    request = request_of(item)._replace(
        host=item.host, name=item.name, after=_runs_before(context.queue, item)
    )
    try:
        with context.budget.promise(
            item.number, request, _view_with_notes_shown(context, item, view)
        ) as cents:
            request = request._replace(most_cents=cents)
            started = launch(
                request, view, item.run, opening=context.opening, hold=NoInterrupts, code=context.code
            )
    except CardBusyError as error:
        return _put_back(context.queue, item, BeginResult.BUSY, _line(error))
    except (RefusedError, UsageError) as error:
        return _put_back(context.queue, item, BeginResult.REFUSED, _own_words(error))
    except AgentError as error:
        if error.code == RUN_EXISTS:
            return settle(context, item, view)
        return _failed(context.queue, item, error)
    except (HostError, RunError) as error:
        return _failed(context.queue, item, error)
    try:
        item = context.queue.step(item, ItemState.CONFIRMED)
    except BaseException:  # the disk is full: this process cannot follow the run
        started.client.close()
        if started.lease is not None:
            _hand_over(context, item, started.lease, view)
        raise
    return Attempt(item, BeginResult.BEGAN, started=started)


def settle(context: ItemContext, item: Item, view: ItemView, tries: int = 0) -> Attempt:
    """Look for the run of an item whose launch was interrupted.

    Adopt the run, or launch it again under the same id. If a client dies while it prepares a run, the host
    removes the preparation, which may take a moment. After some `tries` a prepared run counts as present.
    Raises HostError if the user must act.
    """
    host = Lookup().host(item.host)
    local_copy = LocalCopy(run_of(item), runs_folder())
    try:
        if context.is_rented:
            is_there = _is_rented(host, item, view)
        else:
            host = local_copy.host() if _is_bound(local_copy) else host  # its table may have changed since
            awaits = tries < backend_of(host).upkeep.preparing_looks
            is_there = _is_there(host, local_copy, context.opening, awaits=awaits)
    except UnreachableError as error:
        return _failed(context.queue, item, error)  # a run not bound to a host has not begun there
    except _PreparingError:
        return Attempt(
            item, BeginResult.UNSETTLED, f"{host.name} removes the remains of an interrupted launch"
        )
    if is_there:
        _note_batch(context, local_copy)
        return Attempt(context.queue.step(item, ItemState.CONFIRMED), BeginResult.BEGAN)
    if local_copy.files.is_folder() and not local_copy.files.numbered():
        with local_copy.disk_errors(local_copy.folder):
            local_copy.remove()  # bound by a launch that never reached the host
    return submit(context, item, view)


def _note_batch(context: ItemContext, local_copy: LocalCopy) -> None:
    """Write the batch's name into the index entry of a run, for lists. Raises RunError if the write fails."""
    with local_copy.disk_errors(index.place(local_copy.run)):
        if (entry := local_copy.entry) is not None:
            index.update(entry, batch=context.queue.name)


class _PreparingError(Exception):
    """Raised for a run in preparation, which is about to start or about to be removed."""


def _is_there(host: Host, local_copy: LocalCopy, opening: Opening | None, *, awaits: bool) -> bool:
    """Whether a host has a run. If so, bind the local copy to the host.

    Raises _PreparingError for a run in preparation if `awaits`. Raises OtherRootError if the host's root is
    not the one in which the run was launched.
    """
    with connect(host, opening) as client:
        local_copy.check_root(host.name, client.root_id)
        summaries = runs_of(client, [local_copy.run])
        if not summaries:
            return False
        if summaries[0].state == State.PREPARING and awaits:
            raise _PreparingError
        local_copy.bind_seen(host, client.root_id, summaries[0].time)
    return True


def _is_bound(local_copy: LocalCopy) -> bool:
    """Whether a run may have begun. A run is in the index before it begins."""
    return index.knows(local_copy.run)


def _bind_again(context: ItemContext, item: Item, local_copy: LocalCopy) -> None:
    """Restore the record of a run's host, if the local record was removed. Raises HostError.

    Raises RunError if the run is not on the host.
    """
    host = Lookup().host(item.host)
    if not context.is_rented and not _is_there(host, local_copy, context.opening, awaits=False):
        raise RunError(
            f"{local_copy.run} is neither here nor on {host.name}: it was removed\n"
            f"  end its item   launch batch stop {context.queue.name}     then again   launch batch resume {context.queue.name} --failed"
        )


def _is_rented(host: Host, item: Item, view: ItemView) -> bool:
    """Whether an item's run began on a rented machine.

    If its machine does not have the run, give the machine up.
    """
    found = records.rented_for(run_of(item))
    if found is None:
        return False
    local_copy = local_copy_of(found.record)
    if local_copy is not None and (local_copy.record.began() is not None or not found.rental.is_open):
        return True  # or the machine is gone, so this cannot be checked
    if not found.rental.is_open:
        return False
    if local_copy is not None:
        with open_client(local_copy.host(), local_copy) as client:
            if runs_of(client, [run_of(item)]):
                return True
    give_up_machine(run_of(item), view)
    return False


def _put_back(queue: BatchQueue, item: Item, verdict: BeginResult, words: str) -> Attempt:
    """Return an item to the queue after a host did not take it.

    A host that refused it is not tried again. The last refusal ends the item.
    """
    if verdict != BeginResult.REFUSED:
        return Attempt(queue.step(item, ItemState.QUEUED, why=words), verdict, words)
    tried = (*item.tried, item.host or "")
    refusals = queue.refusals[item.number]
    refusals[item.host or ""] = words
    if all(host in tried for host in item.hosts):
        words = _all_refusals(refusals)
        return Attempt(
            queue.step(item, ItemState.ENDED, outcome=REFUSED, why=words, tried=tried), verdict, words
        )
    return Attempt(queue.step(item, ItemState.QUEUED, why=words, tried=tried), verdict, words)


def _all_refusals(refusals: Mapping[str, str]) -> str:
    """Return why no host takes an item: the first lines of all reasons joined, then their other lines."""
    parts = [(host, *words.partition("\n")[::2]) for host, words in refusals.items()]
    firsts = [first if host in first or len(parts) == 1 else f"{host}: {first}" for host, first, _ in parts]
    return "\n".join(["; ".join(dict.fromkeys(firsts)), *dict.fromkeys(rest for _, _, rest in parts if rest)])


def _failed(queue: BatchQueue, item: Item, error: LaunchError) -> Attempt:
    """Put the item back, or leave it unsettled, after an error of its launch.

    A run is bound to its host before it starts, so an unbound run has not begun.
    """
    if _is_bound(LocalCopy(run_of(item), runs_folder())):
        return Attempt(item, BeginResult.UNSETTLED, _line(error))
    return _put_back(queue, item, BeginResult.SILENT, _line(error))


def follow_item(
    context: ItemContext, item: Item, started: Started | None, view: ItemView, watch: Watch, *, pulls: bool
) -> RunState:
    """Follow the run of an item to its end, as `launch` and `attach` do. Return its last state.

    An interrupted run is recovered first. Raises HostError if the user must act, RunError.
    """
    local_copy = started.local_copy if started is not None else LocalCopy(run_of(item), runs_folder())
    if not _is_bound(local_copy):
        _bind_again(context, item, local_copy)
    host = started.host if started is not None else local_copy.host()
    client: HostClient | None = started.client if started is not None else None
    if started is None and (words := gone(local_copy)) is not None:
        return _state_of_gone(local_copy, words)
    lease = started.lease if started is not None else lease_for(local_copy, view)
    found = records.open_for(local_copy.run)

    def take_left() -> None:
        """Take over the run's rented machine, if the process that managed it was killed."""
        nonlocal lease
        if lease is None and found is not None and not found.is_held:
            lease = lease_for(local_copy, view)
        view.has_rented = lease is not None

    def look(error: UnreachableError | None) -> None:
        watch(error)
        take_left()
        if lease is not None:
            lease.watch(view, error)

    try:
        take_left()
        if started is None:
            client = _recovered(host, local_copy, view, context.opening)
        brings = pulls and (lease is None or lease.record.keeps)  # the end of a rental downloads everything
        state = follow_sessions(
            host, local_copy, view, client, pulls=brings, watch=look, opening=context.opening
        )
        take_left()
        if lease is not None:
            from launcher.rental.lease.release import end_rent  # few runs are on a rented machine
            from launcher.runs.rented.final_download import RunOnMachine

            shown = _view_with_notes_shown(context, item, view) if lease.record.keeps else view
            end_rent(lease, RunOnMachine(local_copy, host, shown), shown, state.state)
    except MachineGoneError as error:
        if lease is not None:
            raise
        # The managing process has downloaded the run already.
        return _state_of_gone(LocalCopy(local_copy.run, runs_folder()), str(error))
    except BaseException:
        if lease is not None and not lease.is_released and lease.rental.is_open:
            _hand_over(context, item, lease, view)
        raise
    finally:
        if lease is not None:
            lease.release()
    finish(local_copy, state, view)
    return state


def _hand_over(context: ItemContext, item: Item, lease: Lease, view: ItemView) -> None:
    """Leave a rental to a background process. Show the user the same messages as a launch does."""
    from launcher.rental.lease.release import hand_off  # few runs are on a rented machine

    hand_off(lease, _view_with_notes_shown(context, item, view))


def _view_with_notes_shown(context: ItemContext, item: Item, view: ItemView) -> ItemView:
    """Return a view whose notes are also shown to the user, and not only written to the log."""

    def tell(text: str) -> None:
        view.note(text)
        context.tell(f"{item.name}: {text}")

    return ItemView(tell)


def _state_of_gone(local_copy: LocalCopy, why_gone: str) -> RunState:
    """Return the last state of a run whose machine is no longer rented.

    Raises RunError if it had not ended.
    """
    state = local_copy.state()
    if state is None or not is_terminal(state.state):
        raise RunError(why_gone)
    return state


def _recovered(
    host: Host, local_copy: LocalCopy, view: ItemView, opening: Opening | None
) -> HostClient | None:
    """Recover a run if necessary. Return its open connection, or None if its host does not answer.

    In the latter case, the caller follows the run and keeps retrying.
    """
    try:
        client = open_client(host, local_copy, opening)
    except UnreachableError as error:
        view.lost(error, 1, 0.0)
        return None
    try:
        recover_to_follow(client, local_copy, view)
    except UnreachableError as error:
        client.close()
        view.lost(error, 1, 0.0)
        return None
    except BaseException:
        client.close()
        raise
    return client


def why_ended(state: RunState) -> str | None:
    """Return the reason of a run's last state in one line."""
    why = why_failed(state.evidence)
    return "; ".join(filter(None, (str(state.reason) if state.reason else None, why))) or None


def _own_words(error: LaunchError) -> str:
    """Return why an item was refused, without the parts that concern only a launch."""
    return str(error).removeprefix(cards.REFUSED).removesuffix(secret_values.FROM_A_FILE)


def _line(error: LaunchError) -> str:
    return str(error).splitlines()[0]
