"""The keeper: the background process that manages a rental until its end, through all failures."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable

from launcher.errors import LaunchError, NoRunError, ServiceAuthError
from launcher.rental.lease.release import RentedRun, end_rent
from launcher.rental.lease.rental_lease import Lease, RentalView

FIRST_PAUSE_S, LAST_PAUSE_S = 60.0, 300.0
"""The seconds it waits after a first failure, and at most, if the same failure repeats."""
DENIED = 8
"""The number of denials in a row that ends the keeper. A revoked key stays revoked."""


def keep(follow: Callable[[], None], lease: Lease, run: RentedRun, view: RentalView) -> None:
    """Follow a run until its rental has ended. Retry after each failure, bugs included.

    Once the time is up, end the rental in any case. Also return if another command asks for the machine, for
    example one with a working key after this process's key is refused. Raise the failure if the rental ended
    without the run's end, or if the key is no longer accepted.
    """
    denied, said, pause_s = 0, "", FIRST_PAUSE_S
    while True:
        try:
            follow()
            return
        except Exception as error:  # bugs too: a bug must not keep the machine billed
            if isinstance(error, NoRunError):
                with contextlib.suppress(LaunchError):
                    end_rent(lease, run, view)
            if lease.is_released:
                raise  # another command has the machine now
            denied = denied + 1 if isinstance(error, ServiceAuthError) else 0
            if not lease.rental.is_open or denied == DENIED:
                raise
            words = _words(error)
            pause_s = min(2 * pause_s, LAST_PAUSE_S) if words == said else FIRST_PAUSE_S
            with contextlib.suppress(OSError):  # its log may be on a full disk
                if denied:
                    lease.note_refused()
                if words != said:
                    cost = f"{lease.cost} so far"
                    view.note(words if cost in words else f"{words}; {cost}, {lease.price}")
            said = words
        if lease.is_past:
            with contextlib.suppress(LaunchError):  # end_rent has reported the error; the loop tries again
                end_rent(lease, run, view)
        if not lease.is_left_alone_for(min(pause_s, lease.left_s) if lease.left_s > 0 else pause_s):
            return


def _words(error: Exception) -> str:
    """Return the first line of a failure. For a bug, add its type and place, for the bug report."""
    first = (str(error).splitlines() or [""])[0]
    if isinstance(error, (LaunchError, OSError)):
        return first
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {place.filename}:{place.lineno}: {first}"
