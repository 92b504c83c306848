"""metrics: what the training measured."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from launcher.cli.options import AcceptFlag, HostOption, JsonFlag, RunWord
from launcher.cli.say import say


def metrics(
    run: RunWord = "last",
    host: HostOption = None,
    _accept: AcceptFlag = False,
    as_json: JsonFlag = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False,
) -> None:
    """Print a run's metrics; where several attempts passed a step, the latest counts.

    Those of the run that it continues come before its own, under that run's id.

    Examples:  launch metrics last     launch metrics w8q2 --csv > w8q2.csv
    """
    from launcher.cli.fetch import fetch
    from launcher.hosts.agent import printable
    from launcher.runs import curves
    from launcher.runs.lineage import joined

    mirror = fetch(run, host)
    found = joined(mirror)
    if as_json:
        rehearsed = mirror.plan().rehearsed
        for measured_by, point in found:
            print(json.dumps(curves.record(measured_by, point, rehearsed=rehearsed)))
    elif as_csv:
        names_as_text = ((one, point._replace(name=printable(point.name))) for one, point in found)
        sys.stdout.write(curves.table(names_as_text))
    elif not found:
        say(f"{mirror.run} has measured nothing yet", f"  look   launch logs {mirror.short}")
    else:
        say(*(f"step {point.step:>6}  {point.name:<16} {point.value:.6g}" for _, point in found))
