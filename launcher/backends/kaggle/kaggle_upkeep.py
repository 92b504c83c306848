"""Batches on Kaggle, where a launch waits until the last run has its machine; the rows of `launch doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.backends.base.upkeep import Upkeep
from launcher.values.prerequisite import Prerequisite

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.backends.base.probing import Probed
    from launcher.backends.kaggle.kaggle_credentials import KaggleLogin
    from launcher.config.lookup import Lookup
    from launcher.values.host import Host


class KaggleUpkeep(Upkeep):
    """The upkeep of an account."""

    preparing_looks = 1  # a session may wait for long
    is_shared = False

    def wait_reason(self, host: str, unbegun: str | None, *, is_launching: bool) -> str | None:
        """Return the reason to wait: another item is being launched, or has no machine yet."""
        if unbegun is not None and not is_launching:
            return f"waits for {unbegun}, which has no machine of {host} yet"
        return super().wait_reason(host, unbegun, is_launching=is_launching)

    def prerequisites(self, probed: Probed, lookup: Lookup) -> Iterable[Prerequisite]:
        """Return the rows of the account's credentials and of its hours."""
        from launcher.backends.base.host_prerequisites import problem_row

        if (problem := problem_row(probed)) is not None:
            return [problem]
        login = _login()
        kinds = {"token": "an access token", "key": "a legacy key", "oauth": "a login by kaggle's own client"}
        words = f"accepted: {kinds[login.kind]} in {login.origin}" if login is not None else "accepted"
        account = probed.facts.host_id.removeprefix("kaggle-") if probed.facts is not None else ""
        more = (
            f"; only a session shows whether its phone is verified: launch doctor {probed.host.name} --probe"
        )
        key = Prerequisite.ok("credentials", f"{words}, account {account}{more}")
        hours = probed.quota or "-"
        if not probed.is_used_up:
            return [key, Prerequisite.ok("hours", hours)]
        mend = 'wait for the refill, or run without a card   accelerator = "None"'
        return [key, Prerequisite.lacking("hours", hours, f"{mend}     in [hosts.{probed.host.name}]")]

    def trial_question(self) -> str:
        """Return the question before a session without a card."""
        from launcher.backends.kaggle.kaggle_trial import QUESTION

        return QUESTION

    def trial(self, host: Host) -> Iterable[Prerequisite]:
        """Run a session of seconds without a card, and return rows of what it showed."""
        from launcher.backends.kaggle.kaggle_host import settings_of
        from launcher.backends.kaggle.kaggle_trial import try_account

        return try_account(settings_of(host))

    def credentials(self) -> str | None:
        """Return where the first credentials for Kaggle were found."""
        login = _login()
        return None if login is None else login.origin


def _login() -> KaggleLogin | None:
    from launcher.backends.kaggle.kaggle_credentials import logins

    return next(logins(os.environ, Path.home()), None)
