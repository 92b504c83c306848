"""Whether a host's kind of place can do what a verb asks."""

from __future__ import annotations

from launcher.errors import LACKS, LackingError, UsageError
from launcher.values.host import Host


def check_has(host: Host, verb: str, run: str = "RUN") -> None:
    """Raise LackingError or UsageError, before anything is asked of the host, if nothing there can do what a verb asks."""
    if host.kaggle is not None and verb in LACKS:
        raise LackingError(host.name, verb, run)
    if host.lambda_cloud is not None and verb == "verify":
        raise UsageError(
            f"verify: not on {host.name}: what it measures is kept on the machine for later launches, and a rented one is gone\n"
            f"  its plan on this machine's CPU   launch verify --rehearse --profile a100_40gb --job …     what is rented   launch offers --host {host.name}"
        )
