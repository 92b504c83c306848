"""plot: draw the loss curve."""

from __future__ import annotations

from launcher.cli.options import AcceptFlag, HostOption, RunWord
from launcher.cli.say import say
from launcher.errors import RunError


def plot(run: RunWord = "last", host: HostOption = None, _accept: AcceptFlag = False) -> None:
    """Draw a run's loss curve and print the picture's path.

    If the run continues another, the curve includes that run.

    Example:  launch plot last
    """
    from launcher.cli.fetch import fetch
    from launcher.runs.lineage import joined
    from launcher.runs.picture import draw

    mirror = fetch(run, host)
    try:
        draw(mirror.run, [point for _, point in joined(mirror)], mirror.picture)
    except OSError as error:
        path = error.filename or mirror.picture
        raise RunError(f"{path}: {error.strerror}\n  once fixed   launch plot {mirror.short}") from error
    say(str(mirror.picture))
