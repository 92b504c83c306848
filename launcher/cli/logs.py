"""logs: what the training printed."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from launcher.cli.options import AcceptFlag, ColorOption, HostOption, RunWord, VerboseFlag


def logs(
    run: RunWord = "last",
    host: HostOption = None,
    _color: ColorOption = None,
    _verbose: VerboseFlag = False,
    _accept: AcceptFlag = False,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue until the run ends.")] = False,
) -> None:
    """Print a run's log, without terminal escapes.

    The log has all attempts, one after another.

    Examples:
        launch logs last
        launch logs w8q2 -f
    """
    from launcher.cli.fetch import fetch
    from launcher.cli.log_view import LogView
    from launcher.runs.following import follow as follow_run

    mirror = fetch(run, host)
    view = LogView(mirror)
    view.show()
    if not follow:
        return
    try:
        with contextlib.closing(view):
            follow_run(mirror.host(), mirror, view, pulls=False)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
