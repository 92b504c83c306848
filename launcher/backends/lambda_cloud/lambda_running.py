"""Runs on Lambda Cloud: each rents a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.base.renting_backend import RentingRunning
from launcher.backends.lambda_cloud.lambda_cloud_host import LambdaCloudHost
from launcher.rental.records import ledger

if TYPE_CHECKING:
    from launcher.rental.rental_settings import RentalSettings
    from launcher.values.host import Host

UNTRIED = (
    "launcher's Lambda Cloud backend was never tried against the real service, only against a simulation: after the "
    "first rental, check Lambda's list of instances, and please report every difference"
)


class LambdaRunning(RentingRunning):
    """The running part for an account."""

    def rental(self, host: Host) -> RentalSettings | None:
        """Return the settings of the host's table."""
        return host.lambda_cloud if isinstance(host, LambdaCloudHost) else None

    def first_note(self) -> str | None:
        """Return the warning that this backend is untested, until this client has rented."""
        return None if ledger().rentals() else UNTRIED
