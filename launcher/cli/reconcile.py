"""reconcile: end what is rented and not needed, and bring home what its runs made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import AcceptFlag, ColorOption, JsonFlag, VerboseFlag

if TYPE_CHECKING:
    from launcher.cli.json_shapes import RentedThing
    from launcher.runs.rent_reconciling import Report


def reconcile(
    _color: ColorOption = None,
    _verbose: VerboseFlag = False,
    _accept: AcceptFlag = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be done; change nothing.")
    ] = False,
    adopt: Annotated[
        list[str] | None,
        typer.Option(
            "--adopt",
            metavar="INSTANCE",
            help="End this instance of the account, whoever made it and whatever runs there.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """End rented machines that no run needs, after their runs' files have come home.

    It compares the list of rentals on this machine with what the account has. A machine whose run goes on is looked after again. Only instances that carry a mark of this
    machine's rentals are ended, and those that --adopt names. The exit code is 1 if something of ours is still paid for and not needed.

    Examples:
        launch reconcile --dry-run
        launch reconcile
        launch reconcile --adopt 0920582c7ff041399e34823a0be62549
    """
    from launcher.cli.plain_view import PlainView
    from launcher.cli.say import complain
    from launcher.runs.rent_reconciling import reconcile_all
    from launcher.runs.silent_view import SilentView

    view = SilentView() if as_json else PlainView()
    reports = reconcile_all(adopt or (), view, dry_run=dry_run)
    if as_json:
        from launcher.cli import json_shapes
        from launcher.cli.answer import answer

        answer(
            json_shapes.Reconciliation(
                dry_run=dry_run, things=_things(reports), unreadable=_unreadable(reports)
            )
        )
    else:
        _show(reports, dry_run=dry_run)
    for path in _unreadable(reports):
        complain(f"{path} cannot be read: what it stands for may be paid for")
    if any(report.done.is_anything_left for report in reports):
        raise typer.Exit(1)


def _unreadable(reports: list[Report]) -> list[str]:
    return sorted({str(path) for report in reports for path in report.done.unreadable})


def _things(reports: list[Report]) -> list[RentedThing]:
    """Return what was ended, then what is there, as rows."""
    from launcher.cli.json_shapes import RentedThing

    rows = []
    for report in reports:
        for ending in report.done.ended:
            rental = ending.rental
            rows.append(
                RentedThing(
                    account=report.account,
                    verdict="ended",
                    why=ending.why,
                    instance=ending.instance,
                    run=rental.intent.run if rental else None,
                    type=rental.intent.type if rental else None,
                )
            )
        for judged in report.done.judged:
            rental, instance = judged.rental, judged.instance
            rows.append(
                RentedThing(
                    account=report.account,
                    verdict=judged.verdict,
                    why=judged.why,
                    instance=instance.id if instance else rental.instance if rental else None,
                    run=rental.intent.run if rental else None,
                    type=(instance.type or None) if instance else rental.intent.type if rental else None,
                )
            )
    return rows


def _show(reports: list[Report], *, dry_run: bool) -> None:
    from launcher.cli.columns import Column, print_columns
    from launcher.cli.say import say

    rows = _things(reports)
    if not rows:
        say("nothing is rented")
        return
    columns = (
        Column("INSTANCE", 12),
        Column("TYPE", drop=1),
        Column("RUN"),
        Column("WOULD BE" if dry_run else ""),
        Column("WHY", 20, wraps=True),
    )
    lines = [
        (row.instance or "-", row.type or "-", (row.run or "-").rpartition("-")[2], row.verdict, row.why)
        for row in rows
    ]
    print_columns(columns, lines)
