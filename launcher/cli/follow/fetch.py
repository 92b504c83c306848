"""Update a run's local copy before it is shown, if its host can be reached."""

from __future__ import annotations

from launcher.cli.output.say import complain
from launcher.copy.last_seen import last_answer
from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, AuthRefusedError, HostError, MachineGoneError, UnreachableError
from launcher.runs.follow.refreshing import refresh
from launcher.runs.locating import locate_to_read
from launcher.runs.run_client import open_client

EARLIER = "showing the local copy"


def fetch(run: str, host: str | None) -> LocalCopy:
    """Return a run's local copy, updated from its host.

    The copy stays unchanged if the host is not asked, does not answer, refuses the login, or no longer has the run.
    """
    place, local_copy = locate_to_read(run, host)
    if place is None:
        complain_not_asked(local_copy)
        return local_copy
    if local_copy.is_freed:
        return local_copy
    try:
        with open_client(place, local_copy) as client:
            refresh(client, local_copy)
    except (UnreachableError, AuthRefusedError) as error:
        complain_unreached(error, local_copy)
    except AgentError as error:  # the host no longer has the run
        complain(f"{error}\n  · {EARLIER}")
    return local_copy


def complain_not_asked(local_copy: LocalCopy) -> None:
    """Print on standard error why the host is not asked: a foreign run, or a run that only its own machine can reach."""
    entry = local_copy.entry
    if entry is not None:
        complain(f"{local_copy.run} is on {entry.elsewhere}; only that machine can contact it\n  · {EARLIER}")
        return
    complain(
        f"{local_copy.run} is foreign: you have not launched or attached it; showing the copy here\n"
        f"  · if it is yours   launch attach --host HOST {local_copy.short}"
    )


def complain_unreached(error: HostError, local_copy: LocalCopy) -> None:
    """Print on standard error that a host does not answer, refuses the login or is gone, and the date of the local copy."""
    if isinstance(error, MachineGoneError):
        complain(f"{str(error).splitlines()[0]}\n  · showing the local copy")
        return
    complain(f"{error}\n  · {last_answer(local_copy) or EARLIER}")
