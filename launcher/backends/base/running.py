"""A backend's part in a run: where it runs, and how it begins, continues and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.rental.rental_settings import RentalSettings
    from launcher.transport.log_diagnosis import Diagnosis
    from launcher.values.host import Host
    from launcher.values.record import RunState


class Running:
    """The running part for a machine that exists already; its agent stores the runs."""

    stop_loses: ClassVar[str | None] = None
    """A description of the loss if an active run is stopped, for the confirmation.

    It is None if the run can save first.
    """

    def rental(self, host: Host) -> RentalSettings | None:
        """Return how to rent a machine for each run of a host; None if runs are on the host itself."""
        return None

    def known_runs(self, host: Host) -> list[LocalCopy] | None:
        """Return a host's runs from this user's index if the host cannot list them; None if it can."""
        return None

    def service_diagnosis(
        self, local_copy: LocalCopy, state: RunState, said: str | None, last_reason: Callable[[], object]
    ) -> Diagnosis | None:
        """Return the diagnosis of a run that its scheduler or service ended or could not start; None for any other run.

        `said` is the service's text about the run; `last_reason` returns the reason of the last attempt's
        end.
        """
        return None

    def first_note(self) -> str | None:
        """Return a note for the user before the first run at such a host.

        Return None if there is none, or if a run was made there.
        """
        return None
