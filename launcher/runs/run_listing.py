"""The rows of `launch ps`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends.registry import backend_of
from launcher.config.lookup import Lookup
from launcher.copy import index, last_seen, move_records
from launcher.copy.ended_rows import EndedRows
from launcher.copy.local_copy import LocalCopy, local_copy_of, run_ids
from launcher.copy.run_id import RUN_ID
from launcher.copy.runs_folder import ids_here, runs_folder
from launcher.errors import LaunchError, ServiceError
from launcher.rental import records
from launcher.runs.follow.summaries import remembered, runs_of
from launcher.runs.locating import own_copy
from launcher.runs.run_client import connect
from launcher.values.host import Host
from launcher.values.parsing import unknown_name
from launcher.values.record import State, Summary, is_terminal

if TYPE_CHECKING:
    from launcher.copy.move_records import MoveRecord


STATES = (*State, "unreadable")
"""The states that a listing can show."""


class ListedRun(NamedTuple):
    """One line of `launch ps`.

    - `problem`: the reason why the row shows only the last known state. `is_unreachable`: the host did not answer.
    - `reached`: the time of the last answer of a host with a problem, in seconds since 1970.
    - `kept_age_s`: the age in seconds of the checkpoint that a follower keeps here, infinity before the first
      one. Only for a live run whose job has `checkpoints = "pull"`.
    - `move`: the run's move to another host. `next`: the command that starts its successor, if that has
      not begun. `beside`: a warning that the parent may still train.
    - `is_foreign`: the run is not in the index, so a command finds it only with `--host`.
    - `rent`: the cost of the run's rented machines. `batch`: this user's batch that contains the run.
    - `folder`: the folder that holds the local copy, if that is not this command's runs folder.
    """

    host: str
    summary: Summary
    problem: str | None = None
    reached: float | None = None
    kept_age_s: float | None = None
    is_unreachable: bool = False
    is_gone: bool = False
    move: MoveRecord | None = None
    next: str | None = None
    beside: str | None = None
    is_foreign: bool = False
    rent: records.RentCost | None = None
    batch: str | None = None
    folder: str | None = None


def listing(
    host_name: str | None,
    states: Sequence[str] = (),
    most: int | None = None,
    *,
    here: bool = False,
    wait_s: float = threading.TIMEOUT_MAX,
) -> list[ListedRun]:
    """Return the newest `most` runs of this user, or of one host, in one of the `states`; the newest first.

    `here`: only those with a local copy below this command's runs folder. Hosts with live runs are asked, all
    at once; each has `wait_s` seconds to answer. The rows of a host that does not answer in time show the last
    known state and the problem. Raises UnknownNameError for an unknown state.
    """
    for word in states:
        if word not in STATES:
            raise unknown_name("state", word, STATES, looked_in="of a run")
    host = Lookup().host(host_name) if host_name is not None else None
    copies = {*ids_here()} if here else None
    if host is None:
        return _all_own(states, most, copies, wait_s)
    known = backend_of(host).running.known_runs(host)
    there = (
        _rows_of(host, states, most if copies is None else None)
        if known is None
        else _own_rows(known, wait_s)
    )
    there = [row for row in there if copies is None or row.summary.run in copies]
    rows = [_with_recorded_moves(row) for row in _newest(there, states)[:most]]
    return [_with_entry(row) for row in rows]


def _with_entry(row: ListedRun) -> ListedRun:
    """Return a row with its run's batch and the folder of its local copy, from the index."""
    entry = index.find(row.summary.run) if RUN_ID.fullmatch(row.summary.run) else None
    if entry is None:
        return row
    return row._replace(batch=entry.batch, folder=_folder_of(local_copy_of(entry.run, entry.copies)))


def _folder_of(local_copy: LocalCopy) -> str | None:
    folder = local_copy.folder.parent
    return None if folder == runs_folder() else str(folder)


def _newest(rows: Iterable[ListedRun], states: Sequence[str]) -> list[ListedRun]:
    """Return the rows in one of the states, the newest first."""
    chosen = [row for row in rows if not states or row.summary.state in states]
    return sorted(chosen, key=lambda row: row.summary.time or 0, reverse=True)


def _all_own(
    states: Sequence[str], most: int | None, among: Container[str] | None, wait_s: float
) -> list[ListedRun]:
    """Return the rows of this user's runs; rows of runs that ended long ago come from the cache."""
    ended = EndedRows()
    costs = records.rent_costs()
    entries = {
        run: entry
        for run in ended.runs
        if run not in ended.rows and (among is None or run in among)
        if (entry := index.find(run)) is not None
    }
    copies = {run: local_copy_of(run, entry.copies) for run, entry in entries.items()}
    kept = {run: row for run, row in ended.rows.items() if among is None or run in among}
    places = {run: entry.place_in_order for run, entry in entries.items()}
    places |= {run: row.place for run, row in kept.items()}
    here = str(runs_folder())
    rows = {
        run: ListedRun(
            row.host,
            row.summary,
            rent=costs.get(run),
            batch=row.batch,
            folder=None if row.folder == here else row.folder,
        )
        for run, row in kept.items()
    }
    own = sorted(entries.values(), key=lambda entry: entry.place_in_order)
    rows |= {
        row.summary.run: row._replace(
            batch=entries[row.summary.run].batch, folder=_folder_of(copies[row.summary.run])
        )
        for row in _own_rows([copies[entry.run] for entry in own], wait_s)
    }
    for run in ended.runs.keys() - rows.keys():
        if (among is None or run in among) and index.damaged(run):
            local_copy = local_copy_of(run)
            rows[run] = ListedRun(
                "-", remembered(local_copy), str(index.not_known(run, local_copy.folder)).splitlines()[0]
            )
            places[run] = local_copy.place_in_order()
    in_order = sorted(rows.values(), key=lambda row: places[row.summary.run], reverse=True)
    for number, row in enumerate(in_order):
        run = row.summary.run
        if run in kept:
            continue
        whole = in_order[number] = _with_recorded_moves(row)
        if whole == ListedRun(row.host, row.summary, batch=row.batch, folder=row.folder) and _is_final(
            row.summary
        ):
            ended.keep(copies[run], entries[run], row.host, row.summary)
    ended.save()
    return _newest(in_order, states)[:most]


def _is_final(summary: Summary) -> bool:
    """Return whether the run's end is recorded here, so that only a change of the local copy can change the row."""
    if summary.parent is not None or not is_terminal(summary.state) or not RUN_ID.fullmatch(summary.run):
        return False
    state = own_copy(summary.run).state()
    return state is not None and is_terminal(state.state)


def _with_recorded_moves(row: ListedRun) -> ListedRun:
    if not RUN_ID.fullmatch(row.summary.run):
        return row
    local_copy = own_copy(row.summary.run)
    recorded_move = move_records.recorded_move_of(local_copy)
    if recorded_move is not None and recorded_move.is_open and records.is_gone(local_copy.run):
        recorded_move = recorded_move.model_copy(
            update={"settled": recorded_move.abandoned}
        )  # no host is left to inform
    beside = move_records.still_training(local_copy, row.summary.parent)
    if recorded_move is None:
        return row if beside is None else row._replace(beside=beside)
    command = (
        None if move_records.has_begun(recorded_move) else move_records.beginning(local_copy, recorded_move)
    )
    return row._replace(move=recorded_move, next=command, beside=beside)


def _rows_of(host: Host, states: Sequence[str], most: int | None) -> list[ListedRun]:
    with connect(host) as client:
        found = client.runs.summaries(states=states, most=most)
    own = {*run_ids()}
    return [
        ListedRun(host.name, summary, is_foreign=summary.run not in own)
        for summary in found
        if RUN_ID.fullmatch(summary.run)
    ]


def _own_rows(own: Sequence[LocalCopy], wait_s: float) -> list[ListedRun]:
    rows: list[ListedRun] = []
    open_runs: dict[str, tuple[Host, list[LocalCopy]]] = {}
    gone = records.gone_machines()
    for local_copy in reversed(own):
        entry = local_copy.entry
        if entry is None:  # another command has just removed it
            continue
        host, state = entry.host, local_copy.state()
        if state is not None and is_terminal(state.state):
            rows.append(ListedRun(host.name, remembered(local_copy)))
        elif entry.elsewhere is not None:
            problem = f"on {entry.elsewhere}; only that machine can contact it"
            rows.append(
                ListedRun(
                    host.name, remembered(local_copy), problem, local_copy.reached(), is_unreachable=True
                )
            )
        elif local_copy.run in gone:
            left = gone[local_copy.run]
            summary = remembered(local_copy).model_copy(update={"ended": left.ended})
            rows.append(ListedRun(host.name, summary, left.words, is_gone=True))
        else:
            open_runs.setdefault(host.model_dump_json(), (host, []))[1].append(local_copy)
    for answered in _ask_all(list(open_runs.values()), wait_s):
        rows += answered
    costs = records.rent_costs()
    return [
        row._replace(kept_age_s=_kept_age_s(row.summary), rent=costs.get(row.summary.run)) for row in rows
    ]


def _kept_age_s(summary: Summary) -> float | None:
    local_copy = own_copy(summary.run)
    if is_terminal(summary.state) or local_copy.record.plan().checkpoints != "pull":
        return None
    from launcher.runs.pull.checkpoint_pulling import kept_checkpoint  # few runs have one

    kept = kept_checkpoint(local_copy)
    return math.inf if kept is None else time.time() - kept.time


def _ask_all(hosts: Sequence[tuple[Host, list[LocalCopy]]], wait_s: float) -> Iterator[list[ListedRun]]:
    """Ask several hosts for their runs at once, waiting at most `wait_s` for an answer."""
    answers: dict[int, list[ListedRun]] = {}

    def ask(number: int) -> None:
        answers[number] = _ask(*hosts[number])

    askers = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(hosts))]
    for asker in askers:
        asker.start()
    deadline = time.monotonic() + wait_s
    for number, (host, local_copies_there) in enumerate(hosts):
        askers[number].join(max(0.0, deadline - time.monotonic()))
        problem = f"no answer within {wait_s:.0f} s   launch ps --host {host.name}"
        yield answers.get(number) or [_unanswered(host, one, None, problem) for one in local_copies_there]


def _ask(host: Host, asked: list[LocalCopy]) -> list[ListedRun]:
    heard: dict[str, Summary] = {}
    try:
        with connect(host) as client:
            here = [local_copy for local_copy in asked if local_copy.is_in(client.root_id)]
            names = [local_copy.run for local_copy in here]
            try:
                found = runs_of(client, names)
            except ServiceError:
                heard = {summary.run: summary for summary in client.runs.heard_before(*names)}
                raise
            summaries = {summary.run: summary for summary in found}
    except LaunchError as error:
        problem = str(error).splitlines()[0]
        return [_unanswered(host, local_copy, heard.get(local_copy.run), problem) for local_copy in asked]
    for local_copy in here:
        local_copy.note_reached()
        if local_copy.run in summaries:
            last_seen.note(local_copy, summaries[local_copy.run])
    gone = "gone: the host has no such run"
    return [
        ListedRun(host.name, summaries[local_copy.run])
        if local_copy.run in summaries
        else ListedRun(host.name, remembered(local_copy), gone)
        for local_copy in asked
    ]


def _unanswered(host: Host, local_copy: LocalCopy, heard: Summary | None, problem: str) -> ListedRun:
    """Return the row of a run whose host does not answer. If the run has ended, its recorded end remains valid."""
    summary = heard or remembered(local_copy)
    if heard is None and is_terminal(summary.state):
        return ListedRun(host.name, summary)
    return ListedRun(host.name, summary, problem, local_copy.reached(), is_unreachable=True)
