"""metrics: the values that the training reported, and the host's own figures."""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import AcceptFlag, HostOption, JsonFlag, RunWord
from launcher.cli.say import say

if TYPE_CHECKING:
    from launcher.runs.curves import Point
    from launcher.runs.host_figures import Summary


def metrics(
    run: RunWord = "last",
    host: HostOption = None,
    _accept: AcceptFlag = False,
    as_json: JsonFlag = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
) -> None:
    """Print a run's metrics, and a summary of the host's own figures: cards, CPU, memory, disk.

    A value that the script's log gives without a step is shown with its time. JSON and CSV have all figures of the host too, named host/NAME.

    Where several attempts passed a step, the latest attempt counts. If the run continues another, that run's metrics come first, under its own id.

    Examples:  launch metrics last     launch metrics w8q2 --csv > w8q2.csv
    """
    from launcher.cli.fetch import fetch
    from launcher.runs import curves
    from launcher.runs.host_figures import host_figures, summarize
    from launcher.runs.lineage import joined
    from launcher.values.record import is_terminal
    from launcher.values.text import printable

    mirror = fetch(run, host)
    measured, figures = joined(mirror), host_figures(mirror)
    everything = itertools.chain(measured, ((mirror.run, point) for point in figures))
    if as_json:
        rehearsed = mirror.plan().rehearsed
        for run_id, point in everything:
            print(json.dumps(curves.record(run_id, point, rehearsed=rehearsed)))
        return
    if as_csv:
        names_as_text = ((run_id, point._replace(name=printable(point.name))) for run_id, point in everything)
        sys.stdout.write(curves.table(names_as_text))
        return
    if not measured:
        state = mirror.state()
        yet = "" if state is not None and is_terminal(state.state) else " yet"
        say(f"{mirror.run} has reported no metrics{yet}", f"  next   launch logs {mirror.short}")
    else:
        say(*(f"{_place(point)}  {point.name:<16} {point.value:.6g}" for _, point in measured))
        if any(point.step is None for _, point in measured):
            say("  · the log gives no step where a time is shown")
    for line in _host_lines(summarize(figures)):
        say(line)


def _place(point: Point) -> str:
    """Return the step of a point, or its time if it has no step."""
    if point.step is None:
        return f"at {time.strftime('%H:%M:%S', time.localtime(point.time))}"
    return f"step {point.step:>6}"


def _host_lines(summaries: dict[str, Summary]) -> list[str]:
    """Return a table of the host's own figures, no line without any."""
    head = f"{'the host, every 10 s':<26} {'last':>9} {'mean':>9} {'least':>9} {'most':>9}"
    rows = [
        f"{name:<26} " + " ".join(f"{value:>9.5g}" for value in summary)
        for name, summary in summaries.items()
    ]
    return [head, *rows] if rows else []
