"""Planning for a machine that is not rented yet."""

from __future__ import annotations

from launcher.backends.base.planning import Planning
from launcher.backends.lambda_cloud.lambda_machines import lambda_findings
from launcher.planning.host_resources import HostChecks
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Plan


class LambdaPlanning(Planning):
    """The planning for an account."""

    def own_checks(self, plan: Plan, facts: Facts | None, host: Host) -> HostChecks:
        """Return notes about the expected facts of the machine."""
        return HostChecks(tuple(lambda_findings(plan, facts, host)))
