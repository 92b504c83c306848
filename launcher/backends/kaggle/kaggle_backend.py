"""A Kaggle account: its runs are kernels, and their files are in a spool on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.base.backend import Backend
from launcher.backends.kaggle.kaggle_host import settings_of
from launcher.backends.spool.spool_lacks import SPOOL_LACKS
from launcher.errors import Lack
from launcher.values.host import Host

if TYPE_CHECKING:
    from launcher.backends.kaggle.kaggle_planning import KagglePlanning
    from launcher.backends.kaggle.kaggle_probing import KaggleProbing
    from launcher.backends.kaggle.kaggle_running import KaggleRunning
    from launcher.backends.kaggle.kaggle_upkeep import KaggleUpkeep
    from launcher.transport.client.host_client import HostClient
    from launcher.transport.shared_connection import SharedConnection

LACKS = {
    **SPOOL_LACKS,
    "sweep": Lack(
        "a run has no process on your machines, and Kaggle ends the processes of a session",
        "its account's storage   launch gc --host {host} --dry-run",
    ),
    "image": Lack(
        "sessions run in Kaggle's own image, and missing packages are installed in each session",
        "its expected hardware   launch probe --host {host}",
    ),
    "init": Lack(
        "the account of your credentials needs no table, and nothing there can be probed",
        'a job there   launch --host {host} -- python train.py     the default   host = "{host}" in launch.toml',
    ),
    "drill": Lack(
        "a drill damages a run on its machine, and no connection leads into a Kaggle session",
        "the same on this machine   launch drill --host local",
    ),
    "verify": Lack(
        "measurements are kept on the machine for later launches, and a session's machine is gone with it",
        "its plan on this machine's CPU   launch verify --host local --rehearse --profile t4x2 --job …",
    ),
}


class KaggleBackend(Backend):
    """The backend of Kaggle accounts."""

    lacks = LACKS

    def connect(self, host: Host) -> HostClient:
        """Return a client of the account's spool. Raises ServiceError for unusable credentials."""
        from launcher.backends.kaggle.kaggle import open_account

        return open_account(host, settings_of(host))

    def open_shared_connection(self, host: Host) -> SharedConnection:
        """Return a shared connection to the account's spool."""
        from launcher.backends.kaggle.kaggle import open_account_connection

        return open_account_connection(host, settings_of(host))

    @property
    def probing(self) -> KaggleProbing:
        """The probing of an account."""
        from launcher.backends.kaggle.kaggle_probing import KaggleProbing

        return KaggleProbing()

    @property
    def planning(self) -> KagglePlanning:
        """The planning for an account."""
        from launcher.backends.kaggle.kaggle_planning import KagglePlanning

        return KagglePlanning()

    @property
    def running(self) -> KaggleRunning:
        """The running part for an account."""
        from launcher.backends.kaggle.kaggle_running import KaggleRunning

        return KaggleRunning()

    @property
    def upkeep(self) -> KaggleUpkeep:
        """The upkeep of an account."""
        from launcher.backends.kaggle.kaggle_upkeep import KaggleUpkeep

        return KaggleUpkeep()


BACKEND = KaggleBackend()
