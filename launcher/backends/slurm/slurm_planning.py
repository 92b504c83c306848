"""Plans for the jobs of a Slurm cluster."""

from __future__ import annotations

from launcher.backends.base.planning import Planning
from launcher.backends.slurm.slurm_gate import slurm_findings
from launcher.planning.host_part import HostChecks
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Plan


class SlurmPlanning(Planning):
    """A cluster's answers. Its login node is probed, and the job runs on another."""

    def own_checks(self, plan: Plan, facts: Facts | None, host: Host) -> HostChecks:
        """Return what the cluster cannot give."""
        del host
        is_in_image = plan.slurm is not None and bool(plan.slurm.container)
        found = tuple(slurm_findings(plan, facts))
        return HostChecks(found, is_elsewhere=True, packages="unknown" if is_in_image else "there")
