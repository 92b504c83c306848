"""The upkeep of a Slurm cluster: its login node is a machine, and `launch doctor` also checks its limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.backends.base.upkeep import Upkeep
from launcher.backends.slurm.slurm_gate import settings_findings
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.values.prerequisite import Prerequisite
from launcher.values.slurm_settings import SlurmSettings

if TYPE_CHECKING:
    from launcher.backends.base.probing import Probed
    from launcher.config.lookup import Lookup


class SlurmUpkeep(Upkeep):
    """The upkeep of a cluster."""

    def prerequisites(self, probed: Probed, lookup: Lookup) -> Iterator[Prerequisite]:
        """Yield the rows of the login node, and the row of a job with the settings of the host's table."""
        from launcher.backends.base.host_prerequisites import connection_rows
        from launcher.planning.host_readiness import disk_row, software_rows

        host, facts = probed.host, probed.facts
        yield from connection_rows(probed)
        if facts is None:
            return
        yield from software_rows(host, facts)
        yield disk_row(host, facts)
        settings = host.slurm if isinstance(host, SlurmHost) else SlurmSettings()
        refused = [
            Prerequisite.lacking("slurm", one.message.removeprefix(f"{host.name}: "), one.mend)
            for one in settings_findings(host.name, settings, facts.slurm)
            if one.level == "refuse"
        ]
        yield from refused or [Prerequisite.ok("slurm", probed.quota or "-")]
