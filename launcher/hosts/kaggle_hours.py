"""The hours that an account of Kaggle's has left this week, asked of the service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from launcher.hosts.kaggle_credentials import logins
from launcher.hosts.kaggle_service import log_in
from launcher.values.kaggle_kernel import Quota
from launcher.values.kaggle_settings import KaggleSettings


class AccountHours(NamedTuple):
    """An account's name, and its hours of the week."""

    user: str
    quota: Quota


def account_hours(settings: KaggleSettings) -> AccountHours:
    """Ask for the hours of the account that this person's credentials are for.

    Raises ServiceAuthError without credentials, ServiceUnreachableError, ServiceError.
    """
    service = log_in(os.environ, Path.home(), settings.api)
    try:
        return AccountHours(service.user, service.quota())
    finally:
        service.close()


def has_credentials() -> bool:
    """Whether this person has credentials for Kaggle; whether they are valid only the service knows."""
    return next(logins(os.environ, Path.home()), None) is not None
