"""logs: print the training's output."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag, RunWord, seconds
from launcher.errors import UsageError


def logs(
    run: RunWord = "last",
    host: HostOption = None,
    lines: Annotated[
        int | None, typer.Option("-n", "--lines", metavar="N", min=0, help="Only the last N lines.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only the output of the last TIME, for example 10m."),
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue until the run ends.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print a run's log, without terminal escapes.

    The log has all attempts, one after another. With -f, it also continues from one session of a run to the next, as
    launch attach does. --since counts back from the run's end, or from now while the run lasts; the printed
    output may begin up to ten seconds earlier.

    Examples:
        launch logs last
        launch logs w8q2 -f
        launch logs w8q2 -n 100
        launch logs w8q2 --since 10m
    """
    from launcher.cli.follow.fetch import fetch
    from launcher.cli.follow.log_view import JsonLogView, LogView
    from launcher.metrics.log_parts import last_lines, lines_since

    if lines is not None and since is not None:
        raise UsageError("-n and --since both choose the part of the log to print: give one of them")
    since_s = seconds(since, "--since")
    local_copy = fetch(run, host)
    starts = {} if lines is None else last_lines(local_copy, lines)
    kind = JsonLogView if as_json else LogView
    try:
        with contextlib.closing(
            kind(local_copy, starts if since is None else lines_since(local_copy, since_s))
        ) as view:
            view.show()
            view.waits(local_copy.told)
            if follow:
                from launcher.runs.follow.sessions import follow_sessions
                from launcher.values.states import State

                state = follow_sessions(local_copy.host(), local_copy, view, pulls=False).state
                if state in (State.INTERRUPTED, State.WAITING):
                    view.note(
                        f"{local_copy.run} is {state}, and will continue   launch attach {local_copy.short}"
                    )
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
