"""What is left of runs at Lambda Cloud: nothing, since each has a machine that is rented for it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.base.upkeep import Upkeep

if TYPE_CHECKING:
    from launcher.values.host import Host


class LambdaUpkeep(Upkeep):
    """An account's answers."""

    is_shared = False
    keeps_files = False

    def wait_reason(self, host: str, unbegun: str | None, *, is_launching: bool) -> str | None:
        """Return None: machines are rented beside each other."""
        del host, unbegun, is_launching
        return None

    def others(self, host: Host) -> list[str]:
        """Return what an account has that was rented from elsewhere, and who can see what."""
        from launcher.backends.lambda_cloud.list_instances import account_words  # it asks the account

        return [] if host.lambda_cloud is None else account_words(host, host.lambda_cloud)
