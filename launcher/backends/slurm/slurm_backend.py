"""A Slurm cluster: its login node is a machine that submits jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.base.backend import Backend
from launcher.errors import Lack

if TYPE_CHECKING:
    from launcher.backends.slurm.slurm_planning import SlurmPlanning
    from launcher.backends.slurm.slurm_probing import SlurmProbing
    from launcher.backends.slurm.slurm_running import SlurmRunning
    from launcher.backends.slurm.slurm_upkeep import SlurmUpkeep

LACKS = {
    "image": Lack(
        "a Slurm job runs without a container of launcher, and no image is built for it",
        "a job's requirements are in its environment   launch --host {host} --dry-run",
    ),
    "verify": Lack(
        "measurements are kept with the machine, and a later job may get another one",
        "its plan on this machine's CPU   launch verify --host local --rehearse --profile a100_40gb --job …",
    ),
}


class SlurmBackend(Backend):
    """The backend of Slurm clusters."""

    lacks = LACKS

    @property
    def probing(self) -> SlurmProbing:
        """The probing of a cluster."""
        from launcher.backends.slurm.slurm_probing import SlurmProbing

        return SlurmProbing()

    @property
    def planning(self) -> SlurmPlanning:
        """The planning for a cluster."""
        from launcher.backends.slurm.slurm_planning import SlurmPlanning

        return SlurmPlanning()

    @property
    def running(self) -> SlurmRunning:
        """The running part for a cluster."""
        from launcher.backends.slurm.slurm_running import SlurmRunning

        return SlurmRunning()

    @property
    def upkeep(self) -> SlurmUpkeep:
        """The upkeep of a cluster."""
        from launcher.backends.slurm.slurm_upkeep import SlurmUpkeep

        return SlurmUpkeep()


BACKEND = SlurmBackend()
