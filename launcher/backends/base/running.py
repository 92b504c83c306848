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
    """The loss if an active run is stopped, in words, for the confirmation; None if the run can save first."""

    def rental(self, host: Host) -> RentalSettings | None:
        """Return the settings for renting a machine for each run; None if runs are on the host itself."""
        return None

    def known_runs(self, host: Host) -> list[LocalCopy] | None:
        """Return a host's runs from this user's index; None if the host can list them itself."""
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

        Return None if there is no note, or if this user has had a run there.
        """
        return None
