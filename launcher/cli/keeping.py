"""See to it that the rent of a run's machine ends, whatever ends the command that looks after it."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

from launcher.errors import HostError, LaunchError, NoRunError, ServiceAuthError

if TYPE_CHECKING:
    from launcher.runs.mirror import Mirror
    from launcher.runs.tenant import Tenant
    from launcher.runs.view import View

FIRST_PAUSE_S, LAST_PAUSE_S = 60.0, 300.0
"""How long the process in the background waits after a first failure, and at most if it stays the same."""
DENIED = 8
"""How often in a row it may be denied: a key that is revoked does not come back."""


@contextlib.contextmanager
def handing_over(tenant: Tenant | None, mirror: Mirror, view: View) -> Iterator[None]:
    """Leave the rental to a process in the background if the block fails, as on a full disk or by a bug; it tries again.

    Without a key that would help nobody, and only the cost is said; so it is if no process can be started.
    """
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:  # a bug too
        if tenant is None or tenant.is_keeper or tenant.is_released or not tenant.rental.is_open:
            raise
        if isinstance(error, ServiceAuthError):
            if tenant.still_rented not in str(error):
                view.note(tenant.still_rented)
            tenant.release()
        else:
            from launcher.runs.rent_ending import look_after

            try:
                view.note(look_after(tenant, mirror))
            except HostError as still_rented:
                view.note(str(still_rented))
        raise


def keep(follow: Callable[[], None], tenant: Tenant, mirror: Mirror, view: View) -> None:
    """Follow a run until its rent has ended; try again after each failure, also by a bug. Once the time is up, end the rent all the same.

    It returns too if another command asks for the machine, as one with another key does once ours is refused. Raises the
    failure if the rent ended without the run's end, or the key is accepted no more.
    """
    from launcher.runs.rent_ending import end_at_limit, end_without_run

    denied, said, pause_s = 0, "", FIRST_PAUSE_S
    while True:
        try:
            follow()
            return
        except typer.Exit:
            raise
        except Exception as error:  # a bug too: nobody may pay for the machine because of it
            if isinstance(error, NoRunError):
                with contextlib.suppress(HostError):
                    end_without_run(tenant, mirror, view)
            if tenant.is_released:
                raise  # another command has the machine now
            denied = denied + 1 if isinstance(error, ServiceAuthError) else 0
            if not tenant.rental.is_open or denied == DENIED:
                raise
            words = _words(error)
            pause_s = min(2 * pause_s, LAST_PAUSE_S) if words == said else FIRST_PAUSE_S
            with contextlib.suppress(OSError):  # its log may be on a full disk
                if denied:
                    tenant.note_refused()
                if words != said:
                    cost = f"{tenant.cost} so far"
                    view.note(words if cost in words else f"{words}; {cost}, {tenant.price}")
            said = words
        if tenant.is_past:
            with contextlib.suppress(LaunchError):  # it says so, and is tried again
                end_at_limit(tenant, mirror, view)
        if not tenant.is_left_alone_for(min(pause_s, tenant.left_s) if tenant.left_s > 0 else pause_s):
            return


def _words(error: Exception) -> str:
    """Return the first line of a failure; of one that is a bug, where it is too, for who reports it."""
    first = (str(error).splitlines() or [""])[0]
    if isinstance(error, (LaunchError, OSError)):
        return first
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {place.filename}:{place.lineno}: {first}"
