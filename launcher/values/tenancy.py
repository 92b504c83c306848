"""What is on record of a rental beside the ledger: how one logs in to its machine, and whose run it is for."""

from __future__ import annotations

from launcher.values.base import Record
from launcher.values.host import Host
from launcher.values.lambda_settings import LambdaSettings


class Tenancy(Record):
    """A rented machine for a run, as a later command needs it.

    `machine` is the plain host that the run is kept on, `runs` the folder of the client's mirrors. `keep`: the user ends it.
    """

    run: str
    nonce: str
    machine: Host
    settings: LambdaSettings
    runs: str

    @property
    def keeps(self) -> bool:
        """Whether the rent goes on when the run has ended."""
        return self.settings.keep
