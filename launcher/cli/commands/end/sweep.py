"""sweep: end and remove leftovers of ended runs on a host."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag


def sweep(
    host: HostOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be done; change nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """End and remove leftovers of ended runs on a host: processes, containers and files.

    Every launch does this too. Only things that provably belong to a run are touched: by the run's token, host, boot and
    start time, or by a container's labels. Anything else is left alone, with the reason. For each foreign process on a
    card, the person to ask is named.

    Examples:
        launch sweep --host lab
        launch sweep --host lab --dry-run
    """
    from launcher.backends.base.probing import NO_JOB
    from launcher.backends.registry import backend_of
    from launcher.cli.output.say import say
    from launcher.config.lookup import Lookup
    from launcher.runs.cleaning import open_runtimes
    from launcher.runs.launch.sweeping import strangers
    from launcher.runs.launch.sweeping import sweep as clean
    from launcher.runs.run_client import connect

    place = Lookup().host(host)
    backend_of(place).check_has(place, "sweep")
    with connect(place) as client, open_runtimes(client, place) as runtimes:
        ours = clean(client, runtimes, dry_run=dry_run)
        facts = backend_of(place).probing.probe(client, place, NO_JOB)
    items = [*ours, *strangers(facts)]
    if as_json:
        from launcher.cli.json_output.end_shapes import Leftovers
        from launcher.cli.output.answer import answer

        answer(Leftovers(host=place.name, dry_run=dry_run, items=items))
        return
    if not ours:
        say(f"{place.name}: nothing is left over")
    if facts.holders_error:
        say(f"{place.name}: the processes on its cards are unknown: {facts.holders_error}")
    if not items:
        return
    from launcher.cli.output.columns import Column, print_columns

    rows = []
    for item in items:
        what = item.name if item.name.startswith("pid") else f"{item.kind} {item.name}"
        did = item.did if item.did != "left" else "left alone"
        rows.append((what, (item.run or "-").rpartition("-")[2], did, item.why))
    done = Column("WOULD BE" if dry_run else "")
    print_columns((Column("WHAT", 12, wraps=True), Column("RUN"), done, Column("WHY", 20, wraps=True)), rows)
