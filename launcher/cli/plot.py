"""plot: draw the loss curve."""

from __future__ import annotations

from launcher.cli.options import AcceptFlag, HostOption, RunWord
from launcher.cli.say import say
from launcher.errors import RunError


def plot(run: RunWord = "last", host: HostOption = None, _accept: AcceptFlag = False) -> None:
    """Draw a run's loss curve, with the use of its cards below it, and print the picture's path.

    If the run continues another, the curve includes that run.

    Example:  launch plot last
    """
    from launcher.cli.fetch import fetch
    from launcher.runs.host_figures import host_figures
    from launcher.runs.lineage import joined
    from launcher.runs.picture import draw

    mirror = fetch(run, host)
    try:
        measured = [point for _, point in joined(mirror)]
        draw(mirror.run, measured, host_figures(mirror), mirror.picture)
    except OSError as error:
        path = error.filename or mirror.picture
        raise RunError(f"{path}: {error.strerror}\n  once fixed   launch plot {mirror.short}") from error
    say(str(mirror.picture))
