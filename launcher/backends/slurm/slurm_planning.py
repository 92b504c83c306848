"""Plans for the jobs of a Slurm cluster."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.backends.base.planning import Planning
from launcher.backends.slurm.slurm_gate import limit_findings, slurm_findings
from launcher.backends.slurm.slurm_job import (
    possible_profiles,
    resubmission,
    settings_of,
    submission,
    with_expected_cards,
    with_others,
)
from launcher.config import resolve
from launcher.planning.host_part import MACHINE, HostChecks, Resources
from launcher.planning.software.apptainer import host_paths
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.plan import Finding, Plan, Submission
from launcher.values.profile import Profile

if TYPE_CHECKING:
    from launcher.backends.base.planning import PlanFor
    from launcher.config.resolved import Resolved


class SlurmPlanning(Planning):
    """A cluster's answers. Its login node is probed, and the job runs on another."""

    def profile(self, profile: Profile, request: Resolved, facts: Facts | None) -> Profile:
        """Return the profile that is planned, with as many cards as each node gets."""
        return _possible(profile, request, facts)[0]

    def resources(self, profile: Profile, request: Resolved, facts: Facts | None) -> Resources:
        """Return what Slurm is asked for."""
        settings = settings_of(request.host, request.job)
        if settings is None:
            return MACHINE
        asked = submission(
            settings,
            _possible(profile, request, facts),
            facts.slurm if facts is not None else None,
            is_rehearsed=request.rehearsed_on is not None,
            paths=host_paths(request.job),
        )
        return resources_of(asked)

    def limits(self, host: str, wanted: Resources, facts: Facts) -> Sequence[Finding]:
        """Return what the cluster's own limits say against it."""
        asked = wanted.submission
        return limit_findings(host, asked, facts.slurm) if asked is not None else ()

    def complete(self, plan: Plan, request: Resolved, facts: Facts | None, plan_for: PlanFor) -> Plan:
        """Return the plan with those for the other cards that Slurm may give."""
        if plan.slurm is None or not plan.slurm.cards or facts is None:
            return plan
        others = [
            plan_for(one, with_expected_cards(facts, one))
            for one in _possible(plan.profile, request, facts)
            if one.name != plan.profile.name
        ]
        return with_others(plan, [other for other in others if other is not None])

    def changed(self, plan: Plan, job: Job) -> Plan:
        """Return the plan with the changed flags of sbatch, and the parent's others."""
        return plan.model_copy(update={"slurm": resubmission(plan.slurm, job.slurm)})

    def own_checks(self, plan: Plan, facts: Facts | None, host: Host) -> HostChecks:
        """Return what the cluster cannot give."""
        del host
        is_in_image = plan.slurm is not None and bool(plan.slurm.container)
        found = tuple(slurm_findings(plan, facts))
        return HostChecks(found, is_elsewhere=True, packages="unknown" if is_in_image else "there")


def resources_of(asked: Submission) -> Resources:
    """Return what a run gets for what Slurm is asked for."""
    return Resources(asked.nodes, "scheduled", asked, _command(asked), bool(asked.container))


def _command(asked: Submission) -> str:
    """Return what Slurm is asked for, and what the job loads, as commands."""
    words = shlex.join(["sbatch", *asked.flags])
    return words if not asked.modules else f"{words}     in the job   module load {' '.join(asked.modules)}"


def _possible(profile: Profile, request: Resolved, facts: Facts | None) -> tuple[Profile, ...]:
    """Return the profiles of the cards that Slurm may give, that of the plan first."""
    settings = settings_of(request.host, request.job)
    if settings is None:
        return (profile,)
    cluster = facts.slurm if facts is not None else None
    named = request.profiles or (() if cluster is not None else (profile,))
    found = possible_profiles(request.host.name, settings, named, request.gpus, cluster, resolve.profiles())
    if profile.name not in [one.name for one in found]:  # a rehearsal that is a plan for the CPU
        return (profile,)
    return tuple(sorted(found, key=lambda one: one.name != profile.name))
