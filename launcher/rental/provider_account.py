"""An account at Lambda Cloud as a launch uses it: the service for the person's key, the renter with its ledger, our SSH key."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import NamedTuple

from launcher.errors import BadFileError, HostError, ServiceError
from launcher.remote.record.locks import Lock
from launcher.rental.instance_keys import LOGIN_KEY, LoginKey, login_key, same_key
from launcher.rental.ledger import Ledger, usual_folder
from launcher.rental.providers.lambda_api import LambdaReason
from launcher.rental.providers.lambda_cloud import LambdaProvider
from launcher.rental.providers.lambda_credentials import find_key
from launcher.rental.providers.lambda_service import LambdaService, log_in
from launcher.rental.rate_limit import usual_pace
from launcher.rental.renter import Renter
from launcher.rental.service_clock import ServiceClock
from launcher.values.clock import SystemClock
from launcher.values.lambda_settings import LambdaSettings

KEYS_LOCK = "keys.lock"
"""Shared by launches, which need our key in the account, and taken by whoever removes it."""


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


def holding_key() -> Lock | None:
    """Keep our login key in the account until this lock is released. Raises OSError."""
    usual_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    return Lock.take(str(usual_folder() / KEYS_LOCK), shared=True)


def forget_key(account: LambdaAccount) -> None:
    """Remove our login key from an account once nothing is rented here: it opens machines. What fails is tried at the next end."""
    folder, renter = usual_folder(), account.renter
    if not (folder / LOGIN_KEY).exists() or any(one.is_open for one in renter.ledger.rentals()):
        return
    with contextlib.suppress(HostError, BadFileError, OSError):
        lock = Lock.take(str(folder / KEYS_LOCK), 0.0)
        if lock is None:
            return  # a launch is about to use it
        try:
            key = login_key(folder)
            for one in account.service.ssh_keys():
                if one.name == key.name and same_key(one.public_key, key.public):
                    account.service.delete_key(one.id)
        finally:
            lock.release()


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
