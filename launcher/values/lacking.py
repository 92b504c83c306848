"""Whether a host's kind of place can do what a verb asks."""

from __future__ import annotations

from launcher.errors import LACKS, RENTED_LACKS, SLURM_LACKS, LackingError
from launcher.values.host import Host


def check_has(host: Host, verb: str, run: str = "RUN") -> None:
    """Raise LackingError, before anything is asked of the host, if nothing there can do what a verb asks."""
    if host.kaggle is not None and verb in LACKS:
        raise LackingError(host.name, verb, run)
    if host.lambda_cloud is not None and verb in RENTED_LACKS:
        raise LackingError(host.name, verb, run, RENTED_LACKS)
    if host.slurm is not None and verb in SLURM_LACKS:
        raise LackingError(host.name, verb, run, SLURM_LACKS)
