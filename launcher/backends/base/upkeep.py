"""A backend's part outside single runs: the waits of a batch, leftovers of runs, the needs of launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcher.backends.base.probing import Probed
    from launcher.config.lookup import Lookup
    from launcher.values.host import Host
    from launcher.values.prerequisite import Prerequisite


class Upkeep:
    """The upkeep part of a machine: its runs share it, and their files stay there."""

    preparing_looks: ClassVar[int] = 10
    """The number of checks after which a batch counts a run that is still in preparation as begun."""
    is_shared: ClassVar[bool] = True
    """Whether a host's runs share one machine; False if each gets its own."""
    keeps_files: ClassVar[bool] = True
    """Whether the files of an ended run stay on the host; False if all are downloaded first."""

    def wait_reason(self, host: str, unbegun: str | None, *, is_launching: bool) -> str | None:
        """Return why a batch cannot launch another item on a host yet; None if it can.

        `unbegun` is an item that was launched there and is not running yet. `is_launching`: a launch is in
        progress.
        """
        return f"waits for another launch on {host}" if is_launching else None

    def others(self, host: Host) -> list[str]:
        """Return lines about an account's machines if no run of this user is known there.

        The list is empty for other hosts.
        """
        return []

    def prerequisites(self, probed: Probed, lookup: Lookup) -> Iterable[Prerequisite]:
        """Return the rows of `launch doctor` for a host, from its probe. The host is not contacted."""
        from launcher.backends.base.host_prerequisites import of_machine  # no other command needs them

        return of_machine(probed, lookup)

    def trial_question(self) -> str | None:
        """Return the question before `trial`; None if nothing can be tried without cost."""
        return None

    def trial(self, host: Host) -> Iterable[Prerequisite]:
        """Try a host's service with a small job that costs nothing; return rows of `launch doctor`.

        Raises HostError.
        """
        raise NotImplementedError(f"{host.name}: nothing is tried")

    def credentials(self) -> str | None:
        """Return where this user's credentials for hosts of this kind were found, never their values; else None.

        Raises BadFileError for an unusable file.
        """
        return None
