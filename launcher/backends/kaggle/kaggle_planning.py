"""Plans for the sessions of an account of Kaggle's."""

from __future__ import annotations

from launcher.backends.base.planning import Planning
from launcher.backends.kaggle.kaggle_gate import kaggle_findings
from launcher.planning.host_part import HostChecks
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.kaggle_settings import KaggleSettings
from launcher.values.plan import Plan


class KagglePlanning(Planning):
    """An account's answers."""

    def own_checks(self, plan: Plan, facts: Facts | None, host: Host) -> HostChecks:
        """Return what speaks against a session. What it lacks is installed there."""
        found = kaggle_findings(plan, host.kaggle or KaggleSettings(), facts)
        return HostChecks(tuple(found), packages="installed")
