"""An account at Lambda Cloud as a launch uses it: the service for the person's key, the renter with its ledger, our SSH key."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

from launcher.errors import ServiceError
from launcher.hosts.call_pace import usual_pace
from launcher.hosts.instance_keys import LoginKey, login_key, same_key
from launcher.hosts.lambda_credentials import find_key
from launcher.hosts.lambda_provider import LambdaProvider
from launcher.hosts.lambda_service import LambdaService, log_in
from launcher.hosts.rental_ledger import Ledger, usual_folder
from launcher.hosts.renter import Renter
from launcher.hosts.service_clock import ServiceClock
from launcher.values.clock import SystemClock
from launcher.values.lambda_cloud import LambdaReason
from launcher.values.lambda_settings import LambdaSettings


class LambdaAccount(NamedTuple):
    """The service, for what only a launch asks of it, and the renter."""

    service: LambdaService
    renter: Renter
    clock: ServiceClock

    def learn_time(self) -> None:
        """Ask for the service's time, unless it is known since this machine's boot."""
        self.clock.learn(self.service.instances)

    def close(self) -> None:
        """Close its connections."""
        self.service.close()


def open_account(settings: LambdaSettings) -> LambdaAccount:
    """Return the account of this person's key, which is not asked yet. Raises BadFileError or ServiceAuthError."""
    clock = ServiceClock()
    pace = usual_pace(settings.api, SystemClock())
    service = log_in(os.environ, Path.home(), pace, settings.api)
    service.hears = clock.note
    renter = Renter(LambdaProvider(service), Ledger(usual_folder()), clock, platform.node() or "client")
    return LambdaAccount(service, renter, clock)


def has_key() -> bool:
    """Whether this person has a key for Lambda Cloud. Raises BadFileError for a file that others can read."""
    return find_key(os.environ, Path.home()) is not None


def registered_key(service: LambdaService) -> LoginKey:
    """Return our login key, which the account has from now on. Raises ServiceError, OSError."""
    key = login_key(usual_folder())
    if any(one.name == key.name and same_key(one.public_key, key.public) for one in service.ssh_keys()):
        return key
    try:
        service.add_key(key.name, key.public)
    except ServiceError as error:
        if error.reason != LambdaReason.DUPLICATE:  # another client of this user was faster
            raise
    return key
