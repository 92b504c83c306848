"""Find the run that a word means (an id, the start of one, a name, or `last`), and the run's host."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from launcher.backends.registry import backend_of
from launcher.config.lookup import Lookup
from launcher.copy import index
from launcher.copy.ended_rows import EndedRows
from launcher.copy.local_copy import LocalCopy, local_copies, local_copy_of, run_ids
from launcher.copy.run_id import RUN_ID, find
from launcher.copy.runs_folder import ids_here, runs_folder
from launcher.errors import SeveralRunsError, UnknownNameError
from launcher.runs.follow.refreshing import refresh
from launcher.runs.follow.summaries import runs_of
from launcher.runs.run_client import connect, keep_for_next_connect
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host
from launcher.values.record import Summary, is_terminal

OWN_AT_ONCE = 50
MANY = 200
NEWEST = 20
"""The number of a host's newest runs that are listed for `last`; the one with the latest start is chosen."""


def locate(word: str, host_name: str | None) -> tuple[Host, LocalCopy]:
    """Return the host and the local copy of the run that a word means.

    If a host is named, the word means one of its runs, and that run is added to the index. Raises
    UnknownNameError, UsageError if the word means several, and RunError for a run that is not in the index.
    """
    if host_name is None:
        local_copy = local_copy_here(word)
        return local_copy.host(), local_copy
    host = Lookup().host(host_name)
    if (known := backend_of(host).running.known_runs(host)) is not None:
        copies = {local_copy.run: local_copy for local_copy in known}
        try:
            local_copy = copies[find(word, [*copies])]
        except UnknownNameError as error:
            raise UnknownNameError(f"{host.name}: {error}") from error
        return local_copy.host(), local_copy
    with contextlib.ExitStack() as until_found:
        client = until_found.enter_context(connect(host))
        try:
            summary = _latest_there(client) if word == "last" else _named_there(client, word)
        except UnknownNameError as error:
            raise UnknownNameError(f"{host.name}: {error}") from error
        local_copy = enter(host, client, summary)
        until_found.pop_all()
    keep_for_next_connect(host, client)
    return host, local_copy


def locate_to_read(word: str, host_name: str | None) -> tuple[Host | None, LocalCopy]:
    """Locate a run for a verb that shows its local copy; the host is None for a foreign run or a run on another machine's host `local`.

    Raises the errors of `locate`, except those for such runs.
    """
    if host_name is None:
        local_copy = local_copy_here(word)
        entry = local_copy.entry
        if entry is None or entry.elsewhere is not None:
            return None, local_copy
    return locate(word, host_name)


def locate_live(word: str, host_name: str | None, verb: str) -> tuple[Host, LocalCopy]:
    """Locate a run for a verb that acts on live runs.

    If a name means several runs, the error suggests the only one that may be live.
    """
    try:
        return locate(word, host_name)
    except SeveralRunsError as error:
        known = {run: own_copy(run).state() for run in error.runs}
        live = [run for run, state in known.items() if state is None or not is_terminal(state.state)]
        if len(live) != 1:
            raise
        ended = [run for run in error.runs if run not in live]
        words = f"launch {verb} {live[0].rpartition('-')[2]}     the only one that may be live"
        raise SeveralRunsError(word, [*live, *ended], words) from None


def local_copy_here(word: str) -> LocalCopy:
    """Return the local copy of the run that a word means: first among the runs in this runs folder, then among all of this user's runs.

    Raises the errors of `locate`; no host is contacted.
    """
    if word == "last":
        return _latest()
    try:
        return own_copy(_named(word, ids_here()))
    except UnknownNameError:
        return own_copy(_named(word, run_ids()))


def attach_all(host_name: str) -> list[str]:
    """Add to the index each foreign run that has a local copy here and is on the host; return their ids.

    Raises HostError.
    """
    host = Lookup().host(host_name)
    with connect(host) as client:
        found = runs_of(client, foreign_here())
        for summary in found:
            refresh(client, enter(host, client, summary))
    return [summary.run for summary in found]


def enter(host: Host, client: HostClient, summary: Summary) -> LocalCopy:
    """Add a host's run to the index; return its local copy.

    Raises OtherRootError, and RunError if its plan differs from that of the local copy.
    """
    local_copy, is_new = own_copy(summary.run), not index.knows(summary.run)
    local_copy.bind_seen(host, client.root_id, summary.time)
    if is_new and local_copy.has_plan:
        try:
            refresh(client, local_copy)  # compares the plan
        except BaseException:  # the plan was not compared, e.g. after a lost link
            index.forget(summary.run)
            raise
    return local_copy


def foreign_here() -> list[str]:
    """Return the sorted ids of the runs that have a local copy here but are not in the index."""
    own = index.runs()
    return [run for run in ids_here() if run not in own]


def own_copy(run: str) -> LocalCopy:
    """Return the local copy of a run, in one of the folders that the index names."""
    return local_copy_of(run, index.copies_of(run))


def _latest() -> LocalCopy:
    """Return this user's latest launch with a local copy here, else the latest launch anywhere.

    Without any launch, return the latest foreign run here.
    """
    here, own = ids_here(), index.runs()
    for among in ([run for run in here if run in own], [*own], here):
        if among:
            return own_copy(max(among, key=_places(among).__getitem__))
    return own_copy(find("last", []))


def _places(runs: Sequence[str]) -> dict[str, tuple[int, float, str]]:
    """Return the sort keys of some runs.

    If there are many, the keys of runs that ended long ago come from the cache of `launch ps`.
    """
    cached = EndedRows().rows if len(runs) > MANY else {}
    return {
        run: cached[run].place if run in cached else LocalCopy(run, runs_folder()).place_in_order()
        for run in runs
    }


def _named(word: str, runs: list[str]) -> str:
    """Return the run among some that a word names; for a chain of resumes with one name, the last of the chain.

    If it names several, the error lists them in order.
    """
    try:
        return find(word, runs)
    except SeveralRunsError as error:  # read the records of these runs only
        found = sorted(
            map(own_copy, error.runs), key=lambda local_copy: local_copy.place_in_order(), reverse=True
        )
        parents = {parent.run for local_copy in found if (parent := local_copy.record.parent()) is not None}
        ends = [local_copy.run for local_copy in found if local_copy.run not in parents]
        if len(ends) == 1:
            return ends[0]
        raise SeveralRunsError(word, [local_copy.run for local_copy in found]) from None


def _named_there(client: HostClient, word: str) -> Summary:
    """Return the host's run that a word names. The host lists only runs whose names begin with the word."""
    summaries = {summary.run: summary for summary in client.runs.summaries(like=word)} if word else {}
    runs = sorted(filter(RUN_ID.fullmatch, summaries), key=lambda run: (summaries[run].time or 0.0, run))
    return summaries[find(word, runs)]


def _latest_there(client: HostClient) -> Summary:
    """Return this client's latest launch on the host, or else the host's newest run."""
    own = [
        local_copy.run
        for local_copy in reversed(local_copies())
        if local_copy.order() and local_copy.may_be_in(client.root_id)
    ]
    for start in range(0, len(own), OWN_AT_ONCE):
        group = own[start : start + OWN_AT_ONCE]
        if found := runs_of(client, group):
            return min(found, key=lambda summary: group.index(summary.run))
    newest = [summary for summary in client.runs.summaries(most=NEWEST) if RUN_ID.fullmatch(summary.run)]
    run = find("last", [summary.run for summary in sorted(newest, key=lambda summary: summary.time or 0)])
    return next(summary for summary in newest if summary.run == run)
