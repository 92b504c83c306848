"""The answers of a host where a machine is rented for each run: only this user's index knows the runs, and nothing stays there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.base.running import Running
from launcher.backends.base.upkeep import Upkeep
from launcher.copy.mirror import Mirror, mirrors

if TYPE_CHECKING:
    from launcher.values.host import Host


class RentingRunning(Running):
    """An account's answers; `rental` is its backend's own."""

    def known_runs(self, host: Host) -> list[Mirror]:
        """Return the runs on machines that were rented for a host, the latest launched last."""
        return [mirror for mirror in mirrors() if (entry := mirror.entry) and entry.host.name == host.name]


class RentingUpkeep(Upkeep):
    """An account's answers."""

    is_shared = False
    keeps_files = False

    def wait_reason(self, host: str, unbegun: str | None, *, is_launching: bool) -> str | None:
        """Return None: machines are rented beside each other."""
        del host, unbegun, is_launching
        return None

    def others(self, host: Host) -> list[str]:
        """Return what an account has that was rented from elsewhere, and who can see what."""
        from launcher.backends.base.list_instances import account_words  # it asks the account
        from launcher.backends.base.rental_choice import settings_of

        return account_words(host, settings_of(host))
