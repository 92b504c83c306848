"""What shared code asks of a backend for a run: where it goes, how it begins, goes on and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from launcher.copy.mirror import Mirror
    from launcher.rental.rental_settings import RentalSettings
    from launcher.transport.log_diagnosis import Diagnosis
    from launcher.values.host import Host
    from launcher.values.record import RunState


class Running:
    """A machine's answers: it is there, and its agent keeps the runs."""

    stop_loses: ClassVar[str | None] = None
    """What is lost if a run at work is stopped, for the question before; None if it can save first."""

    def rental(self, host: Host) -> RentalSettings | None:
        """Return how a machine is rented for each run of a host; None where runs are on the host itself."""
        del host
        return None

    def known_runs(self, host: Host) -> list[Mirror] | None:
        """Return the runs of a host that cannot list them, as this user's index has them; None if the host can be asked."""
        del host
        return None

    def service_diagnosis(
        self, mirror: Mirror, state: RunState, said: str | None, last_reason: Callable[[], object]
    ) -> Diagnosis | None:
        """Return what a scheduler or service has done to a run that it starts; None if nothing, or where none does.

        `said` are its words about the run, `last_reason` returns why the run's last attempt ended.
        """
        del mirror, state, said, last_reason
        return None

    def first_note(self) -> str | None:
        """Return what this user should know before a first run at such a host; None if nothing, or if there was one."""
        return None
