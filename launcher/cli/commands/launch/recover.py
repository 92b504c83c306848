"""recover: continue a run that was interrupted or that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import (
    CardOption,
    EnvFileOption,
    HostOption,
    JsonFlag,
    QuietFlag,
    RunWord,
    SendSecretsFlag,
    WaitOption,
    seconds,
)
from launcher.cli.output.say import say

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.runs.follow.view import View
    from launcher.runs.move.move_target import MoveRequest
    from launcher.runs.resume.recovering import Recovery


def recover(
    run: RunWord = "",
    every: Annotated[
        bool,
        typer.Option("--all", help="All runs that wait or were interrupted; with --host, those of one host."),
    ] = False,
    host: HostOption = None,
    profile: CardOption = None,
    env_files: EnvFileOption = None,
    wait: WaitOption = None,
    abandon: Annotated[
        bool,
        typer.Option(
            "--abandon",
            help="With --host: move the run even if its own host does not answer. It may continue there until that host is reached.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the actions and their cost; stop, rent and send nothing."),
    ] = False,
    sure: SendSecretsFlag = False,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Continue a run that was interrupted, or give a waiting run what it needs.

    A run is interrupted if its host was rebooted, or if its agent or container was killed or removed. It waits for a card,
    a secret, an image or a client. It continues from its last checkpoint, in the background, as the same run; launch attach
    does the same and follows it. For a run that has ended, use launch resume.

    With --host, a run of another host moves to this host: it is stopped, and continues from its last checkpoint as a new
    run with the same global batch, seed and data order. Its curves continue.

    If this host is an account that rents machines, one is rented for the run, at the price that is shown. A run whose
    rented machine is gone moves from the newest checkpoint here.

    With --abandon, a run also moves if its own host does not answer: from the newest checkpoint here. The next command that
    reaches the old host ends the run there. Until then it may continue to train, and launch ps shows both runs.

    Examples:
        launch recover w8q2
        launch recover --all
        launch recover w8q2 --host lab
        launch recover w8q2 --host lab --abandon
        launch recover w8q2 --host lambda --profile a100_40gb
        launch recover w8q2 --host lambda --dry-run
    """
    from launcher.cli.follow.screens import make_view
    from launcher.errors import UsageError
    from launcher.runs.resume import recovering

    if bool(run) == every:
        words = "name a run, or say --all, not both" if run else "name a run, or say --all"
        raise UsageError(f"recover: {words}\n  next   launch ps --state interrupted --state waiting")
    known = None if every or host is None else _known(run)
    if (profile is not None or wait is not None or abandon) and known is None:
        words = "recover: --profile, --wait and --abandon are for a move of a run of this client"
        more = " --abandon" if abandon else ""
        raise UsageError(f"{words}\n  next   launch recover {run or 'RUN'} --host {host or 'HOST'}{more}")
    view = make_view(as_json, is_quiet=quiet)
    request = recovering.RecoverRequest(env_files or (), sure, dry_run)
    if every:
        found = recovering.recover_all(host, request, view)
    elif host is not None and known is not None:
        from launcher.runs.move.move_target import MoveRequest

        request_there = MoveRequest(host, profile, env_files or (), sure, seconds(wait), abandon)
        found = [_moved(known, request_there, view, dry_run=dry_run)]
    else:
        found = [recovering.recover(run, host, request, view)]
    if as_json:
        _answer(found)
    else:
        _show(found)
    if any(one.outcome == recovering.RecoveryOutcome.FAILED for one in found):
        raise typer.Exit(1)
    if any(one.outcome == recovering.RecoveryOutcome.WAITING for one in found):
        raise typer.Exit(5)


def _moved(run: LocalCopy, request: MoveRequest, view: View, *, dry_run: bool) -> Recovery:
    """Move a run to another host, or only preview the move."""
    if dry_run:
        from launcher.runs.move.move_preview import preview_move

        return preview_move(run, request, view)
    from launcher.runs.move.moving import move

    return move(run, request, view)


def _known(run: str) -> LocalCopy | None:
    """Return the local copy of the run that a word names; None if this client does not know it."""
    from launcher.errors import UnknownNameError
    from launcher.runs.locating import locate

    try:
        return locate(run, None)[1]
    except UnknownNameError:
        return None


def _answer(found: list[Recovery]) -> None:
    from launcher.cli.json_output.end_shapes import Recovered, RecoveredRun
    from launcher.cli.output.answer import answer
    from launcher.cli.text.rental_text import rental_shape

    rows = [
        RecoveredRun(
            run=one.run,
            host=one.host,
            outcome=one.outcome,
            state=one.state,
            words=one.words or None,
            rental=rental_shape(one.rental),
        )
        for one in found
    ]
    answer(Recovered(runs=rows))


def _show(found: list[Recovery]) -> None:
    from launcher.cli.text.rental_text import show_rental
    from launcher.runs.resume.recovering import RecoveryOutcome

    if not found:
        say("no run waits or was interrupted")
    for one in found:
        short = one.run.rpartition("-")[2]
        first, *more = one.words.splitlines() or [""]
        if one.outcome == RecoveryOutcome.RECOVERED:
            where = f" {first}" if first else ""
            say(f"{one.run} on {one.host} continues{where}   launch attach {short}")
        elif one.outcome == RecoveryOutcome.PLANNED:
            if one.rental is not None:
                show_rental(one.rental)
            say(f"{one.run}: without --dry-run it {first}")
        elif one.outcome in (RecoveryOutcome.BY_ANOTHER, RecoveryOutcome.NOTHING_TO_DO):
            by = f", recovered {first}" if first else ""
            say(f"{one.run} on {one.host} is {one.state}{by}: nothing to do   launch attach {short}")
        elif one.outcome == RecoveryOutcome.WAITING:
            say(f"{one.run} on {one.host} still waits: {first}", f"  then   launch recover {short}")
        else:
            say(f"{one.run} on {one.host} was not recovered: {first}", *more)
