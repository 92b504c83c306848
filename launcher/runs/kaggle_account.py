"""What a person should know of an account of Kaggle's before a session is pushed: its hours, and that nothing was tried there."""

from __future__ import annotations

from datetime import datetime

from launcher.errors import HostError, RunError
from launcher.hosts.kaggle_hours import account_hours
from launcher.runs.mirror import mirrors
from launcher.runs.view import View
from launcher.values.host import Host
from launcher.values.kaggle_kernel import Hours, Quota
from launcher.values.kaggle_settings import KaggleSettings

UNTRIED = "launcher's way to Kaggle was never tried against the real service, only against a stand-in for it: please report what differs"


def say_before_push(host: Host, view: View) -> None:
    """Show the account's hours, and at the first launch there that nothing was tried. Nothing for a machine.

    Hours that cannot be had are no reason to refuse: the push says whether any are left.
    """
    if host.kaggle is None:
        return
    if not _was_used():
        view.note(f"{host.name}: {UNTRIED}")
    with view.stage("hours") as stage:
        stage.text = quota_or_why(host.kaggle)


def quota_or_why(settings: KaggleSettings) -> str:
    """Return an account's hours in one line, or why they cannot be had."""
    try:
        return quota_words(account_hours(settings).quota)
    except HostError as error:
        return f"unknown: {str(error).splitlines()[0]}"


def quota_words(quota: Quota) -> str:
    """Return an account's hours on GPUs in one line, e.g. `GPU 3.5 h used, 8.5 h reserved, 18 h left, refill 28 Nov 00:00 UTC`."""
    if quota.gpu_quota is None:
        return "Kaggle names no hours on GPUs"
    words = f"GPU {_words(quota.gpu_quota)}"
    return f"{words}, refill {_moment(quota.refill)}" if quota.refill is not None else words


def _words(hours: Hours) -> str:
    figures = {"used": hours.used_s, "reserved": hours.reserved_s, "left": hours.left_s}
    return ", ".join(f"{round(seconds / 3600, 1):g} h {what}" for what, seconds in figures.items())


def _moment(moment: datetime) -> str:
    return moment.strftime("%d %b %H:%M") + (" UTC" if not moment.utcoffset() else moment.strftime(" %z"))


def _was_used() -> bool:
    """Whether this client has a run of an account of Kaggle's on record."""
    for mirror in mirrors():
        try:
            if mirror.host().kaggle is not None:
                return True
        except RunError:  # of another machine, or of no host that is known here
            continue
    return False
