"""What is asked of runs that are there: list, attach, stop, execute."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import (
    EngineError,
    HostError,
    LaunchError,
    NoRunError,
    RunError,
    ServiceError,
    SeveralRunsError,
    UnknownNameError,
)
from launcher.hosts import Desk
from launcher.runs import departures, index, last_seen, tenancies
from launcher.runs.ended_rows import EndedRows
from launcher.runs.evidence import diagnosis, doubt, lingered, why_silent
from launcher.runs.lookup import Lookup
from launcher.runs.mirror import Mirror, mirror_of, mirrors, run_ids
from launcher.runs.refreshing import refresh
from launcher.runs.run_desk import connect, leave_open
from launcher.runs.run_id import RUN_ID, find
from launcher.runs.runs_folder import ids_here, runs_folder
from launcher.runtimes import open_for_run
from launcher.values.host import Host
from launcher.values.parsing import unknown_name
from launcher.values.record import DISK_WORDS, RunState, State, Summary, is_terminal

if TYPE_CHECKING:
    from launcher.hosts.company import Keyboard
    from launcher.values.answers import CommandEnd
    from launcher.values.departure import Departure

STATES = (*State, "unreadable")
"""What a listing may show of a run."""
STOP_SLACK_S = 30.0
OWN_AT_ONCE = 50
MANY = 200
NEWEST = 20
"""Runs of which the one with the latest start is the last: their folders were made last."""
FORCE_S = 8.0
"""How long the agent of a run that is to end now may be silent before it is killed."""


class Row(NamedTuple):
    """One line of `launch ps`. `problem` is why the host was not asked, or could not be: the latter `is_unreachable`.

    `reached` is when the host of a row with a problem last answered, in seconds since 1970. `kept_age_s` is set for a live run
    whose newest checkpoint a follower keeps here: how old that copy is, in seconds; infinity before the first. `goes_on` is
    where this client has had it go on, `next` the command that begins its successor if that has not begun, `beside` says that
    its parent may still train. One that `is_foreign` is not on record here: a command finds it with `--host` alone. `rent` is
    what its rented machines have cost, `batch` the batch of this user that it is an item of. `folder` holds the copy of the
    run, if that is not the runs folder of this command.
    """

    host: str
    summary: Summary
    problem: str | None = None
    reached: float | None = None
    kept_age_s: float | None = None
    is_unreachable: bool = False
    is_gone: bool = False
    goes_on: Departure | None = None
    next: str | None = None
    beside: str | None = None
    is_foreign: bool = False
    rent: tenancies.RentCost | None = None
    batch: str | None = None
    folder: str | None = None


def listing(
    host_name: str | None,
    states: Sequence[str] = (),
    most: int | None = None,
    *,
    here: bool = False,
    wait_s: float = threading.TIMEOUT_MAX,
) -> list[Row]:
    """Return the runs of this user, or of one host: those in one of the `states`, the newest `most`; the newest first.

    `here`: only those with a copy below the runs folder of this command. Hosts with live runs are asked, all at once, for
    `wait_s`. The rows of a host that does not answer by then show the last known state, and say so. Raises UnknownNameError
    for a state that no run has.
    """
    for word in states:
        if word not in STATES:
            raise unknown_name("state", word, STATES, looked_in="of a run")
    host = Lookup().host(host_name) if host_name is not None else None
    copies = {*ids_here()} if here else None
    if host is None:
        return _all_own(states, most, copies, wait_s)
    there = (
        _own_rows(_rented_for(host), wait_s)
        if host.lambda_cloud is not None
        else _rows_of(host, states, most if copies is None else None)
    )
    there = [row for row in there if copies is None or row.summary.run in copies]
    rows = [_with_departures(row) for row in _newest(there, states)[:most]]
    return [_with_entry(row) for row in rows]


def foreign_here() -> list[str]:
    """Return the runs that have a copy here, but are not in the index, by name."""
    own = index.runs()
    return [run for run in ids_here() if run not in own]


def _with_entry(row: Row) -> Row:
    """Return a row with what the index knows of its run: its batch, and where its copy is."""
    entry = index.find(row.summary.run) if RUN_ID.fullmatch(row.summary.run) else None
    if entry is None:
        return row
    return row._replace(batch=entry.batch, folder=_folder_of(mirror_of(entry.run, entry.copies)))


def _folder_of(mirror: Mirror) -> str | None:
    folder = mirror.folder.parent
    return None if folder == runs_folder() else str(folder)


def _newest(rows: Iterable[Row], states: Sequence[str]) -> list[Row]:
    """Return the rows in one of the states, the newest first."""
    chosen = [row for row in rows if not states or row.summary.state in states]
    return sorted(chosen, key=lambda row: row.summary.time or 0, reverse=True)


def _all_own(
    states: Sequence[str], most: int | None, among: Container[str] | None, wait_s: float
) -> list[Row]:
    """Return the rows of this user's runs; those of runs that ended long ago are not read from their copies again."""
    ended = EndedRows()
    costs = tenancies.rent_costs()
    entries = {
        run: entry
        for run in ended.runs
        if run not in ended.rows and (among is None or run in among)
        if (entry := index.find(run)) is not None
    }
    copies = {run: mirror_of(run, entry.copies) for run, entry in entries.items()}
    kept = {run: row for run, row in ended.rows.items() if among is None or run in among}
    places = {run: entry.place_in_order for run, entry in entries.items()}
    places |= {run: row.place for run, row in kept.items()}
    here = str(runs_folder())
    rows = {
        run: Row(
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
            mirror = mirror_of(run)
            rows[run] = Row("-", remembered(mirror), str(index.not_known(run, mirror.folder)).splitlines()[0])
            places[run] = mirror.place_in_order()
    in_order = sorted(rows.values(), key=lambda row: places[row.summary.run], reverse=True)
    for number, row in enumerate(in_order):
        run = row.summary.run
        if run in kept:
            continue
        whole = in_order[number] = _with_departures(row)
        if whole == Row(row.host, row.summary, batch=row.batch, folder=row.folder) and _is_final(row.summary):
            ended.keep(copies[run], entries[run], row.host, row.summary)
    ended.save()
    return _newest(in_order, states)[:most]


def _is_final(summary: Summary) -> bool:
    """Whether nothing but a change of the run's own mirror can change its row: its end is here, not only on its host."""
    if summary.parent is not None or not is_terminal(summary.state) or not RUN_ID.fullmatch(summary.run):
        return False
    state = own_copy(summary.run).state()
    return state is not None and is_terminal(state.state)


def own_copy(run: str) -> Mirror:
    """Return the copy of a run, by what the index knows of where it may be."""
    return mirror_of(run, index.copies_of(run))


def _with_departures(row: Row) -> Row:
    if not RUN_ID.fullmatch(row.summary.run):
        return row
    mirror = own_copy(row.summary.run)
    departure = departures.departure_of(mirror)
    if departure is not None and departure.is_open and tenancies.is_gone(mirror):
        departure = departure.model_copy(
            update={"settled": departure.abandoned}
        )  # nobody is left to hear of it
    beside = departures.still_training(mirror, row.summary.parent)
    if departure is None:
        return row if beside is None else row._replace(beside=beside)
    command = None if departures.has_begun(departure) else departures.beginning(mirror, departure)
    return row._replace(goes_on=departure, next=command, beside=beside)


def _rows_of(host: Host, states: Sequence[str], most: int | None) -> list[Row]:
    with connect(host) as desk:
        found = desk.runs.summaries(states=states, most=most)
    own = {*run_ids()}
    return [
        Row(host.name, summary, is_foreign=summary.run not in own)
        for summary in found
        if RUN_ID.fullmatch(summary.run)
    ]


def _rented_for(host: Host) -> list[Mirror]:
    """Return the runs of this client on machines that were rented for a host, the latest launched last."""
    return [mirror for mirror in mirrors() if (entry := mirror.entry) and entry.host.name == host.name]


def _own_rows(own: Sequence[Mirror], wait_s: float) -> list[Row]:
    rows: list[Row] = []
    open_runs: dict[str, tuple[Host, list[Mirror]]] = {}
    gone = tenancies.gone_machines()
    for mirror in reversed(own):
        entry = mirror.entry
        if entry is None:  # another command has just removed it
            continue
        host, state = entry.host, mirror.state()
        if state is not None and is_terminal(state.state):
            rows.append(Row(host.name, remembered(mirror)))
        elif entry.elsewhere is not None:
            problem = f"on {entry.elsewhere}, which is asked there alone"
            rows.append(Row(host.name, remembered(mirror), problem, mirror.reached(), is_unreachable=True))
        elif mirror.run in gone:
            left = gone[mirror.run]
            summary = remembered(mirror).model_copy(update={"ended": left.ended})
            rows.append(Row(host.name, summary, left.words, is_gone=True))
        else:
            open_runs.setdefault(host.model_dump_json(), (host, []))[1].append(mirror)
    for answered in _ask_all(list(open_runs.values()), wait_s):
        rows += answered
    costs = tenancies.rent_costs()
    return [
        row._replace(kept_age_s=_kept_age_s(row.summary), rent=costs.get(row.summary.run)) for row in rows
    ]


def _kept_age_s(summary: Summary) -> float | None:
    mirror = own_copy(summary.run)
    if is_terminal(summary.state) or mirror.plan().checkpoints != "pull":
        return None
    from launcher.runs.checkpoint_pulling import kept_checkpoint  # few runs have one

    kept = kept_checkpoint(mirror)
    return math.inf if kept is None else time.time() - kept.time


def runs_of(desk: Desk, runs: Sequence[str]) -> list[Summary]:
    """Return the summaries of these runs, without those that the host does not have."""
    asked = {*runs}
    return [summary for summary in desk.runs.summaries(*runs) if summary.run in asked] if runs else []


def summary_of(desk: Desk, run: str) -> Summary | None:
    """Return the summary of a run; `None` if its host has no such run."""
    return next(iter(runs_of(desk, [run])), None)


def has_live_session(desk: Desk, run: str) -> bool:
    """Whether a run may be at work in a session of its host's."""
    summary = summary_of(desk, run)
    idle = (State.INTERRUPTED, State.RESERVED)
    return summary is not None and summary.state not in idle and not is_terminal(summary.state)


def known_summary(desk: Desk, run: str) -> Summary:
    """Return the summary of a run. Raises NoRunError if its host has no such run."""
    summary = summary_of(desk, run)
    if summary is None:
        words = f"{desk.host} has no run {run}: removed there?\n  look   launch ps --host {desk.host}"
        raise NoRunError(words)
    return summary


def _ask_all(hosts: Sequence[tuple[Host, list[Mirror]]], wait_s: float) -> Iterator[list[Row]]:
    """Ask several hosts at once of their runs. One that has not answered after `wait_s` is not waited for."""
    answers: dict[int, list[Row]] = {}

    def ask(number: int) -> None:
        answers[number] = _ask(*hosts[number])

    askers = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(hosts))]
    for asker in askers:
        asker.start()
    deadline = time.monotonic() + wait_s
    for number, (host, mirrors_there) in enumerate(hosts):
        askers[number].join(max(0.0, deadline - time.monotonic()))
        problem = f"no answer within {wait_s:.0f} s   launch ps --host {host.name}"
        yield answers.get(number) or [_unanswered(host, one, None, problem) for one in mirrors_there]


def _ask(host: Host, asked: list[Mirror]) -> list[Row]:
    heard: dict[str, Summary] = {}
    try:
        with connect(host) as desk:
            here = [mirror for mirror in asked if mirror.is_in(desk.root_id)]
            names = [mirror.run for mirror in here]
            try:
                found = runs_of(desk, names)
            except ServiceError:
                heard = {summary.run: summary for summary in desk.runs.heard_before(*names)}
                raise
            summaries = {summary.run: summary for summary in found}
    except LaunchError as error:
        problem = str(error).splitlines()[0]
        return [_unanswered(host, mirror, heard.get(mirror.run), problem) for mirror in asked]
    for mirror in here:
        mirror.note_reached()
        if mirror.run in summaries:
            last_seen.note(mirror, summaries[mirror.run])
    gone = "gone: the host has no such run"
    return [
        Row(host.name, summaries[mirror.run])
        if mirror.run in summaries
        else Row(host.name, remembered(mirror), gone)
        for mirror in asked
    ]


def _unanswered(host: Host, mirror: Mirror, heard: Summary | None, problem: str) -> Row:
    """Return the row of a run whose host does not answer. Of one that was seen to end nothing is in doubt."""
    summary = heard or remembered(mirror)
    if heard is None and is_terminal(summary.state):
        return Row(host.name, summary)
    return Row(host.name, summary, problem, mirror.reached(), is_unreachable=True)


def remembered(mirror: Mirror) -> Summary:
    """Return what this client knows of a run without asking its host."""
    return last_seen.latest(mirror, _on_record(mirror))


def _on_record(mirror: Mirror) -> Summary:
    """Return what the records of a run say that were fetched."""
    plan, state = mirror.plan(), mirror.state() or RunState(state=State.PREPARING)
    reached = state if None not in (state.step, state.loss) else mirror.last_step()
    return Summary(
        run=mirror.run,
        state=state.state,
        reason=state.reason,
        attempt=state.attempt,
        step=reached.step,
        steps=plan.steps,
        loss=reached.loss,
        job=plan.job,
        job_id=mirror.job_id(),
        card=plan.card,
        evidence=state.evidence
        if diagnosis(state.evidence) or doubt(state.evidence) or lingered(state.evidence)
        else None,
        rehearsed=plan.rehearsed,
        parent=mirror.parent(),
        time=mirror.launched() or None,
        ended=_ended(mirror, state),
        took_s=mirror.attempts_s(),
    )


def _ended(mirror: Mirror, state: RunState) -> float | None:
    """Return when a run ended, by this machine's clock: the host's clock may differ."""
    began = mirror.began()
    if not is_terminal(state.state) or state.time is None or began is None:
        return None
    return mirror.launched() + state.time - began


def locate(word: str, host_name: str | None) -> tuple[Host, Mirror]:
    """Return the host and the copy of the run that a word means; with a host named, of its runs, which enters it into the index.

    Raises UnknownNameError, UsageError where the word means several, and RunError for a foreign run.
    """
    if host_name is None:
        mirror = mirror_here(word)
        return mirror.host(), mirror
    host = Lookup().host(host_name)
    if host.lambda_cloud is not None:
        rented = {mirror.run: mirror for mirror in _rented_for(host)}
        try:
            mirror = rented[find(word, [*rented])]
        except UnknownNameError as error:
            raise UnknownNameError(f"{host.name}: {error}") from error
        return mirror.host(), mirror
    with contextlib.ExitStack() as until_found:
        desk = until_found.enter_context(connect(host))
        try:
            summary = _latest_there(desk) if word == "last" else _named_there(desk, word)
        except UnknownNameError as error:
            raise UnknownNameError(f"{host.name}: {error}") from error
        mirror = enter(host, desk, summary)
        until_found.pop_all()
    leave_open(host, desk)
    return host, mirror


def locate_to_read(word: str, host_name: str | None) -> tuple[Host | None, Mirror]:
    """Return the same for a verb that shows the copy of a run; no host for a foreign run, and for one on another machine.

    Raises what `locate` raises, but nothing for such a run.
    """
    if host_name is None:
        mirror = mirror_here(word)
        entry = mirror.entry
        if entry is None or entry.elsewhere is not None:
            return None, mirror
    return locate(word, host_name)


def enter(host: Host, desk: Desk, summary: Summary) -> Mirror:
    """Enter a run that a host has into the index; return its copy. Raises OtherRootError, and RunError if its plan is not that of the copy here."""
    mirror, is_new = own_copy(summary.run), not index.knows(summary.run)
    mirror.bind_seen(host, desk.root_id, summary.time)
    if is_new and mirror.has_plan:
        try:
            refresh(desk, mirror)  # compares the plan
        except BaseException:  # also a lost link: it was not compared
            index.forget(summary.run)
            raise
    return mirror


def attach_all(host_name: str) -> list[str]:
    """Enter each foreign run that has a copy here, and that a host has, into the index; return their ids. Raises HostError."""
    host = Lookup().host(host_name)
    with connect(host) as desk:
        found = runs_of(desk, foreign_here())
        for summary in found:
            refresh(desk, enter(host, desk, summary))
    return [summary.run for summary in found]


def mirror_here(word: str) -> Mirror:
    """Return the copy of the run that a word means: of those with a copy here, else of all runs of this user.

    Raises what `locate` raises; no host is needed.
    """
    if word == "last":
        return _latest()
    try:
        return own_copy(_named(word, ids_here()))
    except UnknownNameError:
        return own_copy(_named(word, run_ids()))


def _latest() -> Mirror:
    """Return the run that this user launched last from here, else from anywhere; without any, the last foreign one here."""
    here, own = ids_here(), index.runs()
    for among in ([run for run in here if run in own], [*own], here):
        if among:
            return own_copy(max(among, key=_places(among).__getitem__))
    return own_copy(find("last", []))


def _places(runs: Sequence[str]) -> dict[str, tuple[int, float, str]]:
    """Return what orders some runs. Of many, those that ended long ago are taken from the cache of their rows."""
    cached = EndedRows().rows if len(runs) > MANY else {}
    return {
        run: cached[run].place if run in cached else Mirror(run, runs_folder()).place_in_order()
        for run in runs
    }


def locate_live(word: str, host_name: str | None, verb: str) -> tuple[Host, Mirror]:
    """Locate a run for a verb of live runs. Where a name means several, the error suggests the only one that may be live."""
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


def _named(word: str, runs: list[str]) -> str:
    """Return the run among some that a word names. Where it means several, they are put in order."""
    try:
        return find(word, runs)
    except SeveralRunsError as error:  # of these alone the records are read
        found = sorted(map(own_copy, error.runs), key=lambda mirror: mirror.place_in_order(), reverse=True)
        raise SeveralRunsError(word, [mirror.run for mirror in found]) from None


def _named_there(desk: Desk, word: str) -> Summary:
    """Return the run of a host that a word names. The host lists only those whose names begin with it."""
    summaries = {summary.run: summary for summary in desk.runs.summaries(like=word)} if word else {}
    runs = sorted(filter(RUN_ID.fullmatch, summaries), key=lambda run: (summaries[run].time or 0.0, run))
    return summaries[find(word, runs)]


def _latest_there(desk: Desk) -> Summary:
    """Return the run of a host that this client launched last, or else the newest run there."""
    own = [mirror.run for mirror in reversed(mirrors()) if mirror.order() and mirror.may_be_in(desk.root_id)]
    for start in range(0, len(own), OWN_AT_ONCE):
        group = own[start : start + OWN_AT_ONCE]
        if found := runs_of(desk, group):
            return min(found, key=lambda summary: group.index(summary.run))
    newest = [summary for summary in desk.runs.summaries(most=NEWEST) if RUN_ID.fullmatch(summary.run)]
    run = find("last", [summary.run for summary in sorted(newest, key=lambda summary: summary.time or 0)])
    return next(summary for summary in newest if summary.run == run)


def stop(desk: Desk, run: str, *, now: bool, grace_s: float) -> Row:
    """Ask a run to stop, or to stop now, and wait until it has and nothing of it is left; return its last summary.

    An agent that does not answer to `now` is killed after a while, with its training. The row's `problem` is what is left
    all the same, what the host's disk refused, or what the engine of a run said that ended without its help.
    Raises RunError if the run still lives after its grace and some slack, EngineError if nobody can say.
    """
    wish = "cancel" if now else "stop"
    refused = desk.runs.wish(run, wish)
    summary = summary_of(desk, run)
    # At least as long as a step and a save were seen to take.
    grace_s = 0.0 if now or summary is None else max(grace_s, summary.grace_s or 0.0)
    problem, must_ask_again = _stop_runtime(desk, summary, grace_s)
    if must_ask_again:
        refused = desk.runs.wish(run, wish)
    began = time.monotonic()
    force_at = began + FORCE_S if now else math.inf
    while time.monotonic() < began + grace_s + STOP_SLACK_S:
        summary = known_summary(desk, run)
        if is_terminal(summary.state) or (refused and summary.state == State.INTERRUPTED):
            return _stopped(desk, summary, problem, refused)
        if problem is not None and why_silent(summary):
            break
        if time.monotonic() > force_at:
            force_at = math.inf
            refused = desk.runs.wish(run, wish, force=True)
        time.sleep(0.1)
    if problem is not None:
        mend = f"without it   launch stop --now {run.rpartition('-')[2]}"
        raise EngineError(desk.host, str(problem) if now else f"{problem}\n  {mend}") from problem
    raise RunError(
        f"{run} on {desk.host} has not ended yet\n  now   launch stop --now {run}     look   launch ps"
    )


def _stop_runtime(desk: Desk, summary: Summary | None, grace_s: float) -> tuple[EngineError | None, bool]:
    """End what keeps a run; return what its engine said instead, and whether to ask the agent again.

    That a run has ended its own job may have written, in a container that still runs.
    """
    if summary is None:
        return None, False
    has_ended = is_terminal(summary.state)
    try:
        with open_for_run(desk, summary) as runtime:
            return None, runtime.stop(summary.run, grace_s) and not has_ended
    except EngineError as error:
        return (None, False) if has_ended else (error, True)


def _stopped(desk: Desk, summary: Summary, problem: EngineError | None, refused: str | None) -> Row:
    """Return the row of a run that has ended, with what is left of it, or is not on record."""
    if problem is not None:
        words = [str(problem).splitlines()[0]]
    else:
        words = [f"still there: {thing}" for thing in desk.runs.remaining(summary.run)]
    if refused:
        words.append(f"{DISK_WORDS.get(refused, refused)} on {desk.host}: the end is not on record")
    return Row(desk.host, summary, "; ".join(words) or None)


def execute(desk: Desk, run: str, command: Sequence[str], take: Callable[[int, bytes], None]) -> int:
    """Run a command beside a run, in its container if it has one; return its exit code, as a shell reports it.

    `take` gets its output as (1 or 2, bytes). Ctrl-C ends the command, and 130 is returned when it has ended; a second
    Ctrl-C does not wait for that. Raises HostError.
    """
    with _beside(desk, run) as inside, _interrupt_noted() as interrupts:
        end = inside.runs.execute(run, command, take, lambda: bool(interrupts))
    return 128 + signal.SIGINT if interrupts else _exit_code(desk, end)


def interact(
    desk: Desk, run: str, command: Sequence[str], take: Callable[[int, bytes], None], keyboard: Keyboard
) -> int:
    """Run a command, by default the user's shell, on a terminal beside a run; return its exit code, as a shell reports it.

    `take` gets what it shows, and it gets what is typed at `keyboard`. Raises HostError.
    """
    with _beside(desk, run) as inside:
        return _exit_code(desk, inside.runs.interact(run, command, take, keyboard))


@contextlib.contextmanager
def _beside(desk: Desk, run: str) -> Iterator[Desk]:
    """Yield a desk from which a command sees what the run's processes see."""
    summary = summary_of(desk, run)
    if summary is None:  # the agent says so
        yield desk
        return
    with open_for_run(desk, summary) as runtime, runtime.inside(run) as inside:
        yield inside


def _exit_code(desk: Desk, end: CommandEnd) -> int:
    if end.signal is not None:
        return 128 + end.signal
    if end.exit is None:
        raise HostError(desk.host, f"{desk.host}: the agent did not report how the command ended")
    return end.exit


@contextlib.contextmanager
def _interrupt_noted() -> Iterator[list[int]]:
    """Collect the first Ctrl-C; the second one interrupts."""
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, _frame: object) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
