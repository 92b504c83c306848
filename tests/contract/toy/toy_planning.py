"""What speaks against a plan for a toy host."""

from __future__ import annotations

from launcher.backends.toy.toy_host import ToyHost

from launcher.backends.base.planning import Planning
from launcher.planning.host_resources import HostChecks
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Finding, Plan


class ToyPlanning(Planning):
    """A toy's checks."""

    def own_checks(self, plan: Plan, facts: Facts | None, host: Host) -> HostChecks:
        """Refuse a line that is too deep."""
        del plan, facts
        if not isinstance(host, ToyHost) or host.toy.depth <= 9:
            return HostChecks()
        deep = Finding(
            level="refuse",
            code="deep",
            message=f"a line of {host.toy.depth} jobs is too deep",
            mend="depth = 9",
        )
        return HostChecks((deep,))
