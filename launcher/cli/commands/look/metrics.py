"""metrics: the values that the training reported, and the host's figures."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag, RunWord
from launcher.cli.output.say import say

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.metrics.curves import Measured
    from launcher.metrics.host_figures import FigureSummary


def metrics(
    run: RunWord = "last",
    host: HostOption = None,
    as_json: JsonFlag = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
) -> None:
    """Print a run's metrics, a line for each step, and a summary of the host's figures: cards, CPU, memory, disk.

    A narrow terminal shows the first metrics, the losses before all others; a pipe gets all. A value without a step in the
    script's log is shown with its time. JSON and CSV also have all figures of the host, named host/NAME.

    If several attempts passed a step, the latest attempt counts. If the run continues another, that run's metrics come
    first, under that run's id.

    Examples:
        launch metrics last
        launch metrics w8q2 --csv > w8q2.csv
    """
    from launcher.cli.follow.fetch import fetch
    from launcher.metrics import curves
    from launcher.metrics.ancestry import joined
    from launcher.metrics.host_figures import host_figures, summarize
    from launcher.values.record import is_terminal

    local_copy = fetch(run, host)
    measured, figures = joined(local_copy), host_figures(local_copy)
    if as_json:
        import json

        rehearsed = local_copy.record.plan().rehearsed
        for run_id, point in itertools.chain(measured, ((local_copy.run, point) for point in figures)):
            print(json.dumps(curves.record(run_id, point, rehearsed=rehearsed)))
        return
    if as_csv:
        of_host = ((local_copy.run, point) for point in figures)
        curves.write_table(itertools.chain(measured, of_host), sys.stdout)
        return
    if not measured:
        state = local_copy.state()
        yet = "" if state is not None and is_terminal(state.state) else " yet"
        say(f"{local_copy.run} has reported no metrics{yet}", f"  next   launch logs {local_copy.short}")
    else:
        _show(local_copy, measured)
    _show_host(summarize(figures))


def _show(local_copy: LocalCopy, measured: list[Measured]) -> None:
    """Print a table with a row for each step, and a note on the omitted columns."""
    from launcher.cli.output.columns import print_columns
    from launcher.cli.output.wrapping import complain_wrapped
    from launcher.cli.text.metrics_table import metrics_table

    left_out = print_columns(*metrics_table(measured))
    if any(point.step is None for _, point in measured):
        complain_wrapped("  · the log gives no step where a time is shown")
    if left_out:
        complain_wrapped(
            f"  · not shown: {', '.join(left_out)}   launch metrics {local_copy.short} --csv has all"
        )


def _show_host(summaries: dict[str, FigureSummary]) -> None:
    """Print a table of the host's figures. Print nothing without figures."""
    from launcher.cli.output.columns import Column, print_columns

    figures = ("last", "mean", "least", "most")
    columns = (Column("the host, every 10 s", 12), *(Column(title, is_figure=True) for title in figures))
    rows = [(name, *(f"{value:.5g}" for value in summary)) for name, summary in summaries.items()]
    if rows:
        print_columns(columns, rows)
