"""pull: fetch a run's artifacts."""

from __future__ import annotations

from launcher.cli.options import AcceptFlag, HostOption, RunWord
from launcher.cli.say import say
from launcher.cli.signals import spinner


def pull(run: RunWord = "last", host: HostOption = None, _accept: AcceptFlag = False) -> None:
    """Fetch a run's artifacts to this machine and verify each file.

    Example:  launch pull last
    """
    from rich.console import Console

    from launcher.hosts import connect
    from launcher.runs.control import locate
    from launcher.runs.following import pull as fetch
    from launcher.runs.following import refresh

    place, mirror = locate(run, host)
    with connect(place) as desk, spinner(Console(stderr=True), f"fetching from {place.name}"):
        refresh(desk, mirror)
        files = fetch(desk, mirror)
    say(f"{files} files   {mirror.artifacts}" if files else f"{mirror.run} has no artifacts")
