"""doctor: show what this computer has, and what each host lacks."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from launcher.config.lookup import Lookup
    from launcher.runs.readiness import Readiness
    from launcher.values.host import Host
    from launcher.values.prerequisite import Prerequisite

COMPUTER = "this computer"
_MARKS = {"lacking": "✗", "unknown": "!", "ok": "✓"}
"""The mark of each state, the worst first."""


def doctor(
    place: Annotated[
        str | None, typer.Argument(metavar="[HOST]", help="Only this host.", show_default=False)
    ] = None,
    host: HostOption = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Try a Kaggle account with a session of seconds, without a card.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --probe.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show what this computer has, and what each host lacks: the first command to type when something fails.

    This computer: its programs, ssh keys, settings and their trust, folders, and the credentials that are present, by name.
    Hosts: those of `launch hosts`, all probed at once. Each has one line, and a row for everything that is lacking or unknown,
    with the next step. With HOST, only this host is shown, with all its rows. Nothing is changed, rented or started, except
    that `--probe` runs a private script in your Kaggle account, and deletes it.

    The exit code is 3 if anything is lacking, else 0.

    Examples:
        launch doctor
        launch doctor lab
        launch doctor me@gpu.example.org:2222
        launch doctor kaggle --probe
        launch doctor --json
    """
    from launcher.config.lookup import Lookup
    from launcher.errors import RefusedError, UsageError

    if place is not None and host is not None and place != host:
        raise UsageError(f"doctor: {place} and --host {host} are two hosts: name one of them")
    lookup, name = Lookup(), place or host
    rows: list[Prerequisite] = []
    if name is None:
        hosts, found = _known(lookup)
    else:
        hosts, found = [lookup.host(name)], []
    if probe:
        _check_trial(hosts if name is not None else [], yes=yes)
    names = [one.name for one in hosts]
    done: set[str] = set()
    with _progress(lambda: {*names, *([COMPUTER] if name is None else [])} - done, as_json=as_json):
        if name is None:
            rows += _computer(lookup)
            done.add(COMPUTER)
        for one in _ask(hosts, lookup):
            found.append(one)
            done.add(one.host)
    if probe:
        found = [_tried(one, hosts[0]) for one in found]
    places = {name: number for number, name in enumerate(names)}
    found.sort(key=lambda one: places.get(one.host, len(places)))
    is_ready = all(row.state != "lacking" for row in rows) and all(one.ready for one in found)
    if as_json:
        _answer(rows, found, is_ready=is_ready)
    else:
        _show(rows, found, in_full=name is not None)
    if not is_ready:
        raise typer.Exit(RefusedError.exit_code)


def _check_trial(hosts: Sequence[Host], *, yes: bool) -> None:
    """Ask before a trial. Raises UsageError if none is possible, and Exit if the user declines."""
    from launcher.backends.registry import backend_of
    from launcher.cli.output.asking import agrees
    from launcher.errors import UsageError

    if not hosts:
        raise UsageError("doctor --probe: name the host\n  as in   launch doctor kaggle --probe")
    name = hosts[0].name
    question = backend_of(hosts[0]).upkeep.trial_question()
    if question is None:
        raise UsageError(
            f"doctor --probe: nothing at {name} can be tried this way\n  its rows   launch doctor {name}"
        )
    is_meant = yes or agrees(question)
    if is_meant is None:
        raise UsageError(f"{question}\n  to agree   launch doctor {name} --probe --yes")
    if not is_meant:
        raise typer.Exit(1)


def _tried(one: Readiness, host: Host) -> Readiness:
    """Return a host's rows with those of a trial, unless something is lacking already."""
    from launcher.backends.registry import backend_of
    from launcher.errors import HostError
    from launcher.values.prerequisite import Prerequisite

    if not one.ready:
        return one
    rows = [*one.rows]
    try:
        rows += backend_of(host).upkeep.trial(host)
    except HostError as error:
        rows.append(Prerequisite.lacking("trial", str(error).removeprefix(f"{host.name}: ")))
    return one._replace(rows=tuple(rows))


def _known(lookup: Lookup) -> tuple[list[Host], list[Readiness]]:
    """Return the hosts to ask, and the rows of untrusted hosts; both are empty if a file is invalid."""
    from launcher.errors import BadFileError
    from launcher.runs.host_probes import known_hosts
    from launcher.runs.readiness import untrusted

    try:
        lookup.ask_trust()
        return list(known_hosts(lookup).values()), untrusted(lookup)
    except BadFileError:  # the rows of this computer name that file
        return [], []


def _computer(lookup: Lookup) -> Iterator[Prerequisite]:
    from launcher.cli.text.version_text import version_text
    from launcher.runs.this_computer import computer_rows
    from launcher.values.prerequisite import Prerequisite

    yield Prerequisite.ok("launcher", version_text())
    yield from computer_rows(lookup)


def _ask(hosts: Sequence[Host], lookup: Lookup) -> Iterator[Readiness]:
    from launcher.runs.readiness import readiness

    return readiness(hosts, lookup)


def _progress(missing: Callable[[], Collection[str]], *, as_json: bool) -> AbstractContextManager[None]:
    """Show the hosts that have not answered once the wait exceeds a second: redrawn in a terminal, else once."""
    from launcher.cli.output.wait_notice import AFTER_S, report_missing, waiting_words
    from launcher.cli.output.watch_loop import growing

    began = time.monotonic()
    if sys.stdout.isatty() and not as_json:
        return growing(
            lambda _width: [waiting_words(missing())] if time.monotonic() - began > AFTER_S else []
        )
    return report_missing(missing)


def _answer(rows: list[Prerequisite], found: list[Readiness], *, is_ready: bool) -> None:
    from launcher.cli.json_output.host_shapes import Doctor, ReadinessRow
    from launcher.cli.output.answer import answer

    hosts = [
        ReadinessRow(host=one.host, ready=one.ready, summary=one.summary, rows=list(one.rows))
        for one in found
    ]
    answer(Doctor(ready=is_ready, computer=rows, hosts=hosts))


def _show(rows: list[Prerequisite], found: list[Readiness], *, in_full: bool) -> None:
    """Print the rows of this computer, and the hosts: `in_full`, or only the rows that need attention."""
    from launcher.cli.output.say import say

    lines = [COMPUTER, *_lines_of(rows)] if rows else []
    width = max((len(one.host) for one in found), default=0)
    for one in found:
        lines += _wrapped(f"{_mark(one)} {one.host:<{width}}  {one.summary or ''}".rstrip(), width + 4)
        lines += _lines_of(row for row in one.rows if in_full or row.state != "ok")
    lacking = [one.host for one in found if not one.ready]
    if lacking and not in_full:
        more = f"all rows of one   launch doctor {shlex.quote(lacking[0])}"
        lines += _wrapped(f"{len(lacking)} of {len(found)} hosts lack something   {more}", 2)
    say(*lines)


def _mark(one: Readiness) -> str:
    states = {row.state for row in one.rows}
    return next((mark for state, mark in _MARKS.items() if state in states), _MARKS["ok"])


def _lines_of(rows: Iterable[Prerequisite]) -> Iterator[str]:
    for row in rows:
        yield from _wrapped(f"  {_MARKS[row.state]} {row.name:<12} {row.found}", 17)
        for line in (row.next or "").splitlines():
            yield from _wrapped(f"{' ' * 17}{line}", 17)


def _wrapped(line: str, hang: int) -> Iterator[str]:
    from launcher.cli.output.wrapping import terminal_width, wrapped_lines

    return wrapped_lines([line], terminal_width(), hang)
