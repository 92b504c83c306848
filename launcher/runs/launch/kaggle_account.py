"""Show a Kaggle account's remaining hours."""

from __future__ import annotations

from launcher.errors import HostError
from launcher.values.kaggle_settings import KaggleSettings


def quota_or_why(settings: KaggleSettings) -> str:
    """Return an account's hours in one line, or why they cannot be had."""
    from launcher.backends.kaggle.kaggle_service import account_hours  # most launches are at machines

    try:
        return account_hours(settings.api)[1].title
    except HostError as error:
        return f"unknown: {str(error).splitlines()[0]}"
