"""Show a Kaggle account's remaining hours, and warn that this backend is untested against the real service."""

from __future__ import annotations

from launcher.copy import index
from launcher.errors import HostError
from launcher.runs.follow.view import View
from launcher.values.host import Host
from launcher.values.kaggle_settings import KaggleSettings

UNTRIED = "launcher's way to Kaggle was never tried against the real service, only against a stand-in for it: please report what differs"


def say_if_new(host: Host, view: View) -> None:
    """Say at a client's first launch at Kaggle that nothing was tried there. Nothing for a machine."""
    if host.kaggle is not None and not _was_used():
        view.note(f"{host.name}: {UNTRIED}")


def quota_or_why(settings: KaggleSettings) -> str:
    """Return an account's hours in one line, or why they cannot be had."""
    from launcher.backends.kaggle.kaggle_service import account_hours  # most launches are at machines

    try:
        return account_hours(settings.api)[1].title
    except HostError as error:
        return f"unknown: {str(error).splitlines()[0]}"


def _was_used() -> bool:
    """Whether this client has a run of an account of Kaggle's on record."""
    return any(entry.host.kaggle is not None for entry in index.entries())
