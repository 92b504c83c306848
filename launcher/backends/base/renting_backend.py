"""Shared parts of backends that rent a machine for each run.

Only this user's index lists the runs, and no files remain on a machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.base.running import Running
from launcher.backends.base.upkeep import Upkeep
from launcher.copy.local_copy import LocalCopy, local_copies
from launcher.rental.provider import module_of
from launcher.values.prerequisite import Prerequisite

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.backends.base.probing import Probed
    from launcher.config.lookup import Lookup
    from launcher.values.host import Host


class RentingRunning(Running):
    """The running part of such a backend, which defines `rental` itself."""

    def known_runs(self, host: Host) -> list[LocalCopy]:
        """Return the runs on machines rented for a host, the latest launch last."""
        return [
            local_copy
            for local_copy in local_copies()
            if (entry := local_copy.entry) and entry.host.name == host.name
        ]


class RentingUpkeep(Upkeep):
    """The upkeep part of such a backend."""

    is_shared = False
    keeps_files = False

    def __init__(self, provider: str) -> None:
        """Use this provider of machines."""
        self._provider = provider

    def wait_reason(self, host: str, unbegun: str | None, *, is_launching: bool) -> str | None:
        """Return None: an account can rent several machines at once."""
        return None

    def others(self, host: Host) -> list[str]:
        """Return lines about machines that another computer rented for the account."""
        from launcher.backends.base.list_instances import account_words  # contacts the provider
        from launcher.backends.base.rental_choice import settings_of

        return account_words(host, settings_of(host))

    def prerequisites(self, probed: Probed, lookup: Lookup) -> Iterable[Prerequisite]:
        """Return the rows of the account's key and of the machine that it would rent."""
        from launcher.backends.base.host_prerequisites import problem_row

        if (problem := problem_row(probed)) is not None:
            return [problem]
        from launcher.backends.base.rental_choice import settings_of

        settings = settings_of(probed.host)
        limits = [f"{settings.max_hours:g} h" if settings.max_hours else ""]
        limits += [f"${settings.max_cost:g}" if settings.max_cost else ""]
        limit = f"{' and '.join(filter(None, limits))} for a rental; above ${settings.confirm_above:g} launch asks"
        return [
            Prerequisite.ok("credentials", f"accepted: the API key of {self.credentials()}"),
            Prerequisite.ok("limit", limit),
            Prerequisite.ok("offers", probed.quota or "-"),
        ]

    def credentials(self) -> str | None:
        """Return where this user's key for the provider was found."""
        key = module_of(self._provider).person_key()
        return None if key is None else key.origin
