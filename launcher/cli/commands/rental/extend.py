"""extend: move the limit of a run's rental."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import JsonFlag, RunWord

MAX_HOURS = 24.0 * 365
"""LONGEST_HOURS of the rental settings, repeated here so that the help does not import them."""


def extend(
    run: RunWord,
    hours: Annotated[
        float,
        typer.Option("--hours", min=0.01, max=MAX_HOURS, help="Hours to add to the current limit."),
    ],
    sure: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Agree to a cost above the host's confirm_above, and do not ask to confirm the run that `last` means.",
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Extend the rental of a run's machine: the run continues, and files are downloaded, until the new limit.

    The limit in the host's table does not change for other rentals. In a batch, the new maximum cost counts towards
    max_cost.

    Examples:
        launch extend w8q2 --hours 2
    """
    import time

    from launcher.cli.output.asking import agrees, check_last
    from launcher.cli.output.say import say
    from launcher.errors import UsageError
    from launcher.rental.lease import extend as more_time
    from launcher.rental.lease.rental_lease import cron_line
    from launcher.rental.records import open_for
    from launcher.rental.renting import dollars
    from launcher.runs.locating import locate
    from launcher.runs.rented.rented_runs import leave_to_keeper

    _, local_copy = locate(run, None)
    check_last(run, local_copy, "extend", yes=sure, options=f" --hours {hours:g}")
    found = open_for(local_copy.run)
    if found is None:
        raise UsageError(f"{local_copy.run}: no machine is rented for it\n  rented machines   launch hosts")
    cost = more_time.cost_with(found, hours * 3600)
    if not sure:
        cost.confirm(agrees, "nothing was changed")
    rental = more_time.extend(found, hours * 3600)
    leave_to_keeper(local_copy)
    if as_json:
        from launcher.cli.json_output.end_shapes import Extended
        from launcher.cli.output.answer import answer

        answer(Extended(run=local_copy.run, deadline=rental.intent.deadline, largest_cents=rental.largest))
        return
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(rental.intent.deadline))
    say(
        f"{local_copy.run}: its machine is rented until {until}, for {dollars(rental.largest)} at most",
        f"  a crontab line for the earlier limit still ends the machine then; replace it by   {cron_line(rental)}",
    )
