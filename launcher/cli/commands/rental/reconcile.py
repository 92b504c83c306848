"""reconcile: end rented machines that no run needs, after their runs' files are downloaded."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import JsonFlag

if TYPE_CHECKING:
    from launcher.cli.json_output.end_shapes import RentedThing
    from launcher.rental.reconcile import Reconciled
    from launcher.rental.renting import Rental
    from launcher.rental.verdict import JudgedRental


def reconcile(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be done; change nothing.")
    ] = False,
    adopt: Annotated[
        list[str] | None,
        typer.Option(
            "--adopt",
            metavar="INSTANCE",
            help="Terminate this instance of the account, even if launch did not rent it. Files that a run of this machine has there are downloaded first. If another computer rented it, you are asked first.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Terminate the --adopt instance even if a run continues there, or files are lost."
        ),
    ] = False,
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            metavar="TIME",
            help="Terminate the --adopt instance only from this time on, e.g. 2026-11-26T02:10Z. Until it is gone the exit code is 5.",
        ),
    ] = None,
    sure: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Terminate an --adopt instance that another computer rented, without asking.",
        ),
    ] = False,
    dismiss: Annotated[
        str | None,
        typer.Option(
            "--dismiss",
            metavar="RUN",
            help="Stop reporting the rental of this run, made with a key that is lost. It may still be billed.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Terminate rented machines that no run needs, after their runs' files are downloaded.

    It compares this machine's list of rentals with the account's instances. A machine whose run continues
    gets a new background process. Only instances that carry a mark of this machine's rentals, or that
    --adopt names, are terminated. The exit code is 1 if a rental of this machine is not needed and still
    billed. It is 3 if --adopt names an instance of another computer, without --yes and without a terminal to
    ask at.

    A rental made with an API key of another account can be neither seen nor terminated. If that key is lost, look at the
    account's web page, then --dismiss the rental.

    Examples:
        launch reconcile --dry-run
        launch reconcile
        launch reconcile --adopt 0920582c7ff041399e34823a0be62549 --force
        launch reconcile --dismiss w8q2
    """
    from launcher.backends.registry import backend_of
    from launcher.cli.follow.screens import make_view
    from launcher.cli.output.say import complain
    from launcher.config.lookup import Lookup
    from launcher.errors import UsageError
    from launcher.rental.provider import module_of
    from launcher.rental.settle_account import TerminationRequest, reconcile_all
    from launcher.runs.follow.view import NullView
    from launcher.runs.rented.final_download import run_of

    if dismiss is not None:
        if dry_run or adopt or after is not None or force or sure or as_json:
            raise UsageError(
                "reconcile: --dismiss goes with no other option\n  next   launch reconcile --dismiss RUN"
            )
        _dismiss(dismiss)
        return
    named = TerminationRequest(adopt or (), None if after is None else _moment(after), force, sure)
    if named.after is not None and not named.instances:
        raise UsageError(
            "reconcile: --after applies only to instances that --adopt names\n  next   launch reconcile"
        )
    for flag, is_given in (("--force", force), ("--yes", sure)):
        if is_given and not named.instances:
            raise UsageError(
                f"reconcile: {flag} applies only to instances that --adopt names\n  next   launch reconcile"
            )
    view = NullView() if as_json else make_view(as_json_lines=False)
    tables = (backend_of(host).running.rental(host) for host in Lookup().hosts.values())
    accounts = (one for one in tables if one is not None)
    settled = reconcile_all(accounts, named, lambda record: run_of(record, view), view, dry_run=dry_run)
    reports = settled.reports
    if settled.failed and not reports:
        for other in settled.failed[1:]:
            complain(str(other))
        raise settled.failed[0]
    if as_json:
        from launcher.cli.json_output.end_shapes import Reconciliation
        from launcher.cli.output.answer import answer

        answer(Reconciliation(dry_run=dry_run, things=_things(reports), unreadable=_unreadable(reports)))
    else:
        _show(reports, dry_run=dry_run)
    for found in (judged for report in reports for judged in report.judged):
        if found.verdict == "elsewhere" and found.rental is not None:
            intent = found.rental.intent
            complain(
                f"{intent.run}: its machine was rented with another API key, and may still be billed: set {module_of(intent.provider).SETTINGS.variable} to that key\n"
                f"  if that key is lost, and the account's page shows no machine   launch reconcile --dismiss {intent.run.rpartition('-')[2]}",
            )
    for path in _unreadable(reports):
        complain(f"{path} cannot be read: its rental may still be billed")
    for rental in settled.unknown:
        intent = rental.intent
        complain(
            f"{intent.run}: its machine may still be billed by {intent.provider}, which this version of launcher does not know\n"
            "  with the version that rented it   launch reconcile"
        )
    there = [one for one in named.instances if any(one in report.listed for report in reports)]
    is_missing = False
    for one in named.instances:
        if one not in there and not any(
            one == ending.instance for report in reports for ending in report.ended
        ):
            complain(
                f"{one} is not in the list of any account here: it no longer exists, or it belongs to another key"
            )
            is_missing = named.after is None
    for error in settled.failed:
        complain(str(error))
    if settled.failed:
        raise typer.Exit(settled.failed[0].exit_code)
    if is_missing or settled.unknown or any(report.is_anything_left for report in reports):
        raise typer.Exit(1)
    if there and not dry_run:
        if named.after is not None:
            when = _utc(named.after)
            complain(
                f"{', '.join(there)}: not before {when}, as --after says; until it is gone the exit code is 5"
            )
        raise typer.Exit(5)


def _dismiss(word: str) -> None:
    from launcher.cli.output.say import say
    from launcher.copy.run_id import find
    from launcher.errors import UnknownNameError
    from launcher.rental.provider import module_of
    from launcher.rental.settle_account import dismiss, open_by_run

    open_ones = open_by_run()
    if not open_ones:
        raise UnknownNameError(
            "no open rental is on record on this computer\n  the account's machines   launch reconcile"
        )
    rental = dismiss(open_ones[find(word, [*open_ones])])
    what = f"instance {rental.instance}" if rental.instance is not None else "an instance"
    say(
        f"{rental.intent.run}: its rental is no longer reported; {what} of it may still be billed",
        f"  look at   {module_of(rental.intent.provider).INSTANCES_PAGE}",
    )


def _moment(written: str) -> float:
    """Return a written time in seconds since 1970. Without a zone, it is local time. Raises UsageError."""
    from datetime import datetime

    from launcher.errors import UsageError

    try:
        return datetime.fromisoformat(written).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"--after {written}: expected a time such as 2026-11-26T02:10Z") from None


def _utc(moment: float) -> str:
    import time

    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(moment))


def _unreadable(reports: list[Reconciled]) -> list[str]:
    return sorted({str(path) for report in reports for path in report.unreadable})


def _things(reports: list[Reconciled]) -> list[RentedThing]:
    """Return rows: first the ended instances, then launches without an instance, then the others."""
    rows = []
    for report in reports:
        of = functools.partial(_row, report.account)
        rows += [of("ended", one.why, one.rental, one.instance, one.cents) for one in report.ended]
        nothing = "its launch has made no instance: nothing was rented"
        rows += [of("gone", nothing, rental, None, 0) for rental in report.unmade]
        for one in report.judged:
            there, rental = one.instance, one.rental
            instance = there.id if there else rental.instance if rental else None
            row = of(one.verdict, one.why, rental, instance, _cents(one))
            rows.append(row.model_copy(update={"type": there.type or None}) if there else row)
    return rows


def _row(
    account: str, verdict: str, why: str, rental: Rental | None, instance: str | None, cents: int | None
) -> RentedThing:
    from launcher.cli.json_output.end_shapes import RentedThing

    run, kind = (rental.intent.run, rental.intent.type) if rental else (None, None)
    return RentedThing(
        account=account, verdict=verdict, why=why, instance=instance, run=run, type=kind, cents=cents
    )


def _cents(judged: JudgedRental) -> int | None:
    """Return a machine's cost so far; its possible cost if it is unknown whether the launch made a machine."""
    from launcher.rental.renting import RentalState
    from launcher.rental.service_clock import clock_of

    if judged.rental is None:
        return None
    rental, now = judged.rental, clock_of(judged.rental.intent.provider).likely()
    is_unrecorded = (
        rental.state is RentalState.INTENT and judged.instance is not None
    )  # the account lists a machine that the ledger lacks
    is_billed = judged.verdict == "unsettled" or is_unrecorded
    return rental.time_cents(now) if is_billed else rental.cents_at(now)


def _cost(row: RentedThing) -> str:
    from launcher.rental.renting import dollars

    if row.cents is None:
        return "-"
    return f"{'nothing or ' if row.verdict == 'unsettled' else ''}{dollars(row.cents)}"


def _show(reports: list[Reconciled], *, dry_run: bool) -> None:
    from launcher.cli.output.columns import Column, print_columns
    from launcher.cli.output.say import say

    rows = _things(reports)
    if not rows:
        say("nothing is rented")
        return
    columns = (
        Column("INSTANCE", 12),
        Column("TYPE", drop=1),
        Column("RUN"),
        Column("COST", is_figure=True),
        Column("WOULD BE" if dry_run else ""),
        Column("WHY", 20, wraps=True),
    )
    lines = [
        (
            row.instance or "-",
            row.type or "-",
            (row.run or "-").rpartition("-")[2],
            _cost(row),
            row.verdict,
            row.why,
        )
        for row in rows
    ]
    print_columns(columns, lines)
