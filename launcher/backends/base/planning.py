"""What shared code asks of a backend for a plan: what a task may ask for there, and what a plan has more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from launcher.planning.host_part import HostChecks
from launcher.values.plan import Finding

if TYPE_CHECKING:
    from launcher.planning.software.wheels import WheelTable
    from launcher.values.facts import Facts
    from launcher.values.host import Host
    from launcher.values.plan import Plan
    from launcher.values.profile import Profile


class Planning:
    """A machine's answers: a plan has nothing of its own."""

    def check(
        self,
        plan: Plan,
        facts: Facts | None,
        host: Host,
        wheels: WheelTable | None = None,
        cards: Iterable[Profile] = (),
    ) -> tuple[Finding, ...]:
        """Return the findings of the gate, with those of this kind of host."""
        from launcher.planning.gate import check  # a launch loads it while its host is waited for

        return check(plan, facts, host, wheels, cards, self.own_checks(plan, facts, host))

    def own_checks(self, plan: Plan, facts: Facts | None, host: Host) -> HostChecks:
        """Return what the gate takes from this kind of host."""
        del host
        if facts is None or not facts.has_slurm:
            return HostChecks()
        message = f"{plan.host}: this is a login node of a Slurm cluster, and the training runs on {facts.hostname} itself"
        mend = f'as a job of the cluster   kind = "slurm"   in [hosts.{plan.host}]'
        return HostChecks((Finding(level="note", code="slurm-login-node", message=message, mend=mend),))
