"""Looking at a run: what is new is fetched first, if its host can be reached."""

from __future__ import annotations

from launcher.cli.say import complain
from launcher.errors import AgentError, UnreachableError
from launcher.hosts import connect
from launcher.runs.control import locate
from launcher.runs.following import refresh
from launcher.runs.mirror import Mirror


def fetch(run: str, host: str | None) -> Mirror:
    """Return the mirror of the run that a word means, brought up to date; as it is where the host is not reached."""
    place, mirror = locate(run, host)
    try:
        with connect(place) as agent:
            refresh(agent, mirror)
    except (UnreachableError, AgentError) as error:  # a host that is away, or one that has removed the run
        complain(f"{error}\n  · what follows was fetched before")
    return mirror
