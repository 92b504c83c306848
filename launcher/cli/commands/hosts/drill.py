"""drill: test recovery on a host with every fault that needs no root, on a small job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import CardOption, HostOption, JsonFlag
from launcher.cli.output.say import complain
from launcher.cli.signals import Terminated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.drill.drill_outcome import Drill, FaultOutcome
    from launcher.drill.drilling import Prepared


def drill(
    host: HostOption = None,
    profile: CardOption = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="RUNTIME",
            help="How the job runs on the host: auto, docker or native; a cluster has only auto.",
        ),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="FAULT",
            help="Only this fault; FAULT@STEP for another step than the default. May be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the faults with their durations; launch nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Test recovery on your host: kill, cut off and break a small job, and check that it recovers.

    The job needs only Python, and no card unless --profile names one. It is launched once for each fault: processes are
    killed, the connection is cut, a folder fills up, a checkpoint is torn. A ledger outside of the run shows steps that were
    skipped or trained twice; ps, sha256sum and docker show leftovers. Each run is removed afterwards.

    The exit code is 1 if a result was not as expected. A fault that the host cannot produce is not run.

    Examples:
        launch drill --host lab
        launch drill --host lab --fault agent-killed --fault link-cut
        launch drill --host lab --dry-run
    """
    from launcher.cli.follow.screens import make_view
    from launcher.drill import drilling
    from launcher.drill.drill_outcome import DrillResult

    view = make_view(as_json_lines=False)
    request = drilling.DrillRequest(host, profile, runtime, faults or ())
    rows: list[FaultOutcome] = []
    try:
        with drilling.prepared(request, view) as ready:
            if dry_run:
                _show_plan(ready, as_json=as_json)
                return
            view.note(_plan_words(ready))
            found = drilling.drill(ready, view, rows)
    except (KeyboardInterrupt, Terminated) as error:
        view.close()
        if not dry_run:
            left = "; ".join(getattr(error, "__notes__", ())) or "the begun run was removed"
            complain(f"interrupted after {_count(len(rows), 'fault')}: {left}")
            if rows and not as_json:
                _show_rows(rows)
        raise typer.Exit(Terminated.exit_code if isinstance(error, Terminated) else 130) from None
    finally:
        view.close()
    if as_json:
        _answer(found)
    else:
        _show(found)
    if any(row.result == DrillResult.FAILED for row in found.rows):
        raise typer.Exit(1)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _plan_words(ready: Prepared) -> str:
    from launcher.drill.drill_judging import minutes_of

    count = sum(one.fault.name not in ready.unable for one in ready.planned)
    minutes = max(1, round(minutes_of(ready.planned)))
    where = f"{ready.host.name}, {ready.runtime}"
    return f"{_count(count, 'fault')} on {where}: about {minutes} min; each run is removed afterwards"


def _show_plan(ready: Prepared, *, as_json: bool) -> None:
    if as_json:
        from launcher.cli.json_output.end_shapes import DrillPlan, PlannedFault
        from launcher.cli.output.answer import answer

        faults = [
            PlannedFault(
                fault=one.name,
                title=one.fault.title,
                expected=one.fault.expected,
                seconds=one.fault.seconds,
                unable=ready.unable.get(one.fault.name),
            )
            for one in ready.planned
        ]
        answer(DrillPlan(host=ready.host.name, runtime=ready.runtime, faults=faults))
        return
    from launcher.cli.output.columns import Column, print_columns
    from launcher.cli.output.say import say

    rows = []
    for one in ready.planned:
        why = ready.unable.get(one.fault.name)
        told = one.fault.expected if why is None else f"not run: {why}"
        rows.append((one.name, one.fault.title, f"{one.fault.seconds} s", told))
    columns = (
        Column("FAULT"),
        Column("WHAT", 20, wraps=True),
        Column("ABOUT"),
        Column("EXPECTED", 20, wraps=True),
    )
    print_columns(columns, rows)
    say(_plan_words(ready))


def _show(found: Drill) -> None:
    from pathlib import Path

    from launcher.cli.follow.ending import shown_path
    from launcher.cli.output.say import say
    from launcher.drill.drill_outcome import DrillResult

    _show_rows(found.rows)
    bad = sum(row.result == DrillResult.FAILED for row in found.rows)
    count = sum(row.result != DrillResult.NOT_RUN for row in found.rows)
    where = shown_path(Path(found.evidence))
    say(f"{count - bad} of {count} as expected on {found.host}, {found.runtime}; ledgers in {where}")


def _show_rows(found: Sequence[FaultOutcome]) -> None:
    from launcher.cli.output.columns import Column, print_columns
    from launcher.cli.output.say import say
    from launcher.drill.drill_outcome import DrillResult

    rows = []
    for row in found:
        lost = "-" if row.steps_again is None else str(row.steps_again)
        silent = "-" if row.silent_s is None else f"{row.silent_s:.1f} s"
        left = "-" if row.result == DrillResult.NOT_RUN else str(len(row.left))
        rows.append(
            (
                row.fault,
                row.result.replace("-", " "),
                row.failure or "-",
                row.remedy or "-",
                lost,
                silent,
                left,
            )
        )
    columns = (
        Column("FAULT"),
        Column("RESULT"),
        Column("CLASS"),
        Column("REMEDY", 20, wraps=True),
        Column("STEPS AGAIN"),
        Column("SILENT"),
        Column("LEFT"),
    )
    print_columns(columns, rows)
    for row in found:
        for problem in row.problems:
            say(f"{row.fault}: {problem}")
        if row.result == DrillResult.FAILED and row.run is not None:
            say(f"  its record is kept here   launch logs {row.run.rpartition('-')[2]}")


def _answer(found: Drill) -> None:
    from launcher.cli.json_output.end_shapes import DrillReport
    from launcher.cli.output.answer import answer

    answer(DrillReport(**found._asdict()))
