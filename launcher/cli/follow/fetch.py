"""Update a run's local copy before it is shown, if its host can be reached."""

from __future__ import annotations

from launcher.cli.output.say import complain
from launcher.copy.last_answer import last_answer
from launcher.copy.mirror import LocalCopy
from launcher.errors import AgentError, MachineGoneError, UnreachableError
from launcher.runs.follow.refreshing import refresh
from launcher.runs.locating import locate_to_read
from launcher.runs.run_desk import open_desk

EARLIER = "showing the local copy"


def fetch(run: str, host: str | None) -> LocalCopy:
    """Return a run's local copy, updated from its host.

    The copy stays unchanged if the host is not asked, does not answer, or no longer has the run.
    """
    place, mirror = locate_to_read(run, host)
    if place is None:
        complain_not_asked(mirror)
        return mirror
    if mirror.is_freed:
        return mirror
    try:
        with open_desk(place, mirror) as desk:
            refresh(desk, mirror)
    except UnreachableError as error:
        complain_unreached(error, mirror)
    except AgentError as error:  # the host no longer has the run
        complain(f"{error}\n  · {EARLIER}")
    return mirror


def complain_not_asked(mirror: LocalCopy) -> None:
    """Print on standard error why the host is not asked: a foreign run, or a run that only its own machine can reach."""
    entry = mirror.entry
    if entry is not None:
        complain(f"{mirror.run} is on {entry.elsewhere}, which is asked there alone\n  · {EARLIER}")
        return
    complain(
        f"{mirror.run} is foreign: you have not launched or attached it; showing the copy here\n"
        f"  · if it is yours   launch attach --host HOST {mirror.short}"
    )


def complain_unreached(error: UnreachableError, mirror: LocalCopy) -> None:
    """Print on standard error that a host does not answer or is gone, and the date of the local copy."""
    if isinstance(error, MachineGoneError):
        complain(f"{str(error).splitlines()[0]}\n  · showing the local copy")
        return
    complain(f"{error}\n  · {last_answer(mirror) or EARLIER}")
