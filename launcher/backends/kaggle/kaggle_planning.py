"""Plans for the sessions of an account of Kaggle's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.base.planning import Planning
from launcher.backends.kaggle.kaggle_gate import kaggle_findings
from launcher.backends.kaggle.kaggle_machines import expected_facts
from launcher.backends.kaggle.kaggle_session import session
from launcher.config import resolve
from launcher.planning.host_part import HostChecks, Resources
from launcher.planning.precision.ladder import is_too_large_as_asked
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.kaggle_settings import KaggleSettings
from launcher.values.plan import Plan
from launcher.values.profile import Profile

if TYPE_CHECKING:
    from launcher.backends.base.planning import PlanFor
    from launcher.config.resolved import Resolved

SESSION = Resources(cards="given")
"""A session has its cards for its run alone."""


class KagglePlanning(Planning):
    """An account's answers."""

    def profile(self, profile: Profile, request: Resolved, facts: Facts | None) -> Profile:
        """Return the profile of all cards of the chosen machine, whatever --gpus asks for."""
        is_chosen = request.machine is not None and request.rehearsed_on is None
        return profile if is_chosen else super().profile(profile, request, facts)

    def resources(self, profile: Profile, request: Resolved, facts: Facts | None) -> Resources:
        """Return what a session is."""
        del profile, request, facts
        return SESSION

    def complete(self, plan: Plan, request: Resolved, facts: Facts | None, plan_for: PlanFor) -> Plan:
        """Return the plan with its sessions, and with plans for the other cards that may come."""
        chosen = request.machine
        if chosen is None or facts is None:
            return plan
        evidence = facts.precision_evidence
        others = [
            plan_for(one, expected_facts(facts.host_id, chosen.machine, one, evidence))
            for one in chosen.profiles[1:]
        ]
        known = [other for other in others if other is not None and not is_too_large_as_asked(other.ladder)]
        given = session(chosen, known, request.job.requirements, resolve.wheels())
        return plan.model_copy(update={"session": given})

    def own_checks(self, plan: Plan, facts: Facts | None, host: Host) -> HostChecks:
        """Return what speaks against a session. What it lacks is installed there."""
        found = kaggle_findings(plan, host.kaggle or KaggleSettings(), facts)
        return HostChecks(tuple(found), packages="installed")
