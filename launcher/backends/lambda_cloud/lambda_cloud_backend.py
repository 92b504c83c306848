"""A Lambda Cloud account: each launch rents a machine, which is then used like an SSH host."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from launcher.backends.base.backend import Backend
from launcher.errors import Lack, UsageError
from launcher.values.host import Host

if TYPE_CHECKING:
    from launcher.backends.base.renting_backend import RentingUpkeep
    from launcher.backends.lambda_cloud.lambda_planning import LambdaPlanning
    from launcher.backends.lambda_cloud.lambda_probing import LambdaProbing
    from launcher.backends.lambda_cloud.lambda_running import LambdaRunning

LACKS = {
    "init": Lack(
        "a table there needs no probe, and nothing can be probed before a machine is rented",
        'a table, with a limit   [hosts.{host}]  kind = "lambda-cloud"  max_hours = 4     offers   launch offers',
    ),
    "sweep": Lack(
        "each machine there is rented for one run, and terminated with all files left on it",
        "rented machines   launch hosts     unused machines   launch reconcile",
    ),
    "drill": Lack(
        "a drill would rent a machine for each fault, and break it while you pay for it",
        "the same on this machine   launch drill --host local     on a machine of yours   launch drill --host lab",
    ),
    "verify": Lack(
        "measurements are kept on the machine for later launches, and a rented one is gone",
        "its plan on this machine's CPU   launch verify --rehearse --profile a100_40gb --job …     offers   launch offers --host {host}",
    ),
}


class LambdaCloud(Backend):
    """The backend of Lambda Cloud accounts."""

    lacks = LACKS

    def connect(self, host: Host) -> NoReturn:
        """Raise UsageError, because a machine is reached through its run."""
        raise UsageError(
            f"{host.name}: no machine to connect to: one is rented for each launch, and is reached through its run\n"
            f"  its runs   launch ps     offers   launch offers --host {host.name}"
        )

    open_shared_connection = connect

    @property
    def probing(self) -> LambdaProbing:
        """The probing of an account."""
        from launcher.backends.lambda_cloud.lambda_probing import LambdaProbing

        return LambdaProbing()

    @property
    def planning(self) -> LambdaPlanning:
        """The planning for an account."""
        from launcher.backends.lambda_cloud.lambda_planning import LambdaPlanning

        return LambdaPlanning()

    @property
    def running(self) -> LambdaRunning:
        """The running part for an account."""
        from launcher.backends.lambda_cloud.lambda_running import LambdaRunning

        return LambdaRunning()

    @property
    def upkeep(self) -> RentingUpkeep:
        """The upkeep of an account."""
        from launcher.backends.base.renting_backend import RentingUpkeep
        from launcher.rental.providers.lambda_settings import LambdaSettings

        return RentingUpkeep(LambdaSettings.provider)


BACKEND = LambdaCloud()
