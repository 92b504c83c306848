"""From what a host says about itself to the plan of a request.

It loads while the host is waited for: nothing of it is needed before.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from launcher.backends.kaggle.kaggle_machines import expected_facts
from launcher.backends.kaggle.kaggle_session import session
from launcher.backends.runtimes import load as load_runtime
from launcher.backends.slurm.slurm_gate import limit_findings
from launcher.backends.slurm.slurm_job import possible_profiles, submission, with_expected_cards, with_others
from launcher.backends.slurm.slurm_job import settings_of as slurm_settings_of
from launcher.config import resolve
from launcher.config.script_reading import script_use
from launcher.errors import RefusedError, UnequalSharesError
from launcher.planning.assembly import ladder_inputs
from launcher.planning.assembly import plan as make_plan
from launcher.planning.placement import own_runtime
from launcher.planning.placement import runtime as choose_runtime
from launcher.planning.precision.ladder import is_too_large_as_asked, ladder
from launcher.planning.script.script import starts_python
from launcher.planning.software.apptainer import host_paths
from launcher.planning.software.environment_plan import environment
from launcher.planning.software.needed_packages import may_need_more, with_needed
from launcher.planning.software.wheel_choice import site
from launcher.runs.launch import cards
from launcher.runs.launch.contact import refusal
from launcher.values.facts import Facts
from launcher.values.job import Job
from launcher.values.machine_choice import MachineChoice
from launcher.values.model import Model
from launcher.values.plan import Plan, ScriptUse, Submission
from launcher.values.precision import Platform
from launcher.values.profile import Profile

if TYPE_CHECKING:
    from launcher.config.resolved import Resolved

WITHOUT_FACTS = "native"
"""The runtime of a preview whose host did not answer."""


def plan_of(profile: Profile, resolved: Resolved, facts: Facts | None) -> Plan:
    """Return the plan. The facts decide on the runtime; without facts it is `native`. Raises RefusedError."""
    return plan_with(profile, resolved, facts, script_use(resolved.job, resolved.task.code))


def plan_with(profile: Profile, resolved: Resolved, facts: Facts | None, script: ScriptUse) -> Plan:
    """Return the plan of a job of whose script this is known.

    For sessions of Kaggle's, and for a cluster, it has the plans for the other cards that may come.
    """
    plan = _plan_for(profile, resolved, facts, script)
    if plan.slurm is not None and facts is not None:
        return with_others(plan, _plans_of_others(plan, resolved, facts, script))
    if resolved.machine is None or facts is None:
        return plan
    others = [
        _plan_of_other(other, resolved, resolved.machine, facts, script)
        for other in resolved.machine.profiles[1:]
    ]
    known = [other for other in others if other is not None and not is_too_large_as_asked(other.ladder)]
    given = session(resolved.machine, known, resolved.job.requirements, resolve.wheels())
    return plan.model_copy(update={"session": given})


def _plans_of_others(plan: Plan, resolved: Resolved, facts: Facts, script: ScriptUse) -> list[Plan]:
    """Return the plans for the other cards that Slurm may give, but for those that the job cannot run on as it was asked for."""
    found = []
    for other in _possible(plan.profile, resolved, facts):
        if other.name != plan.profile.name and plan.slurm is not None and plan.slurm.cards:
            with contextlib.suppress(RefusedError):
                found.append(_plan_for(other, resolved, with_expected_cards(facts, other), script))
    return found


def _possible(profile: Profile, resolved: Resolved, facts: Facts | None) -> tuple[Profile, ...]:
    """Return the profiles of the cards that Slurm may give, that of the plan first; it alone on any other host."""
    settings = slurm_settings_of(resolved.host, resolved.job)
    if settings is None:
        return (profile,)
    cluster = facts.slurm if facts is not None else None
    named = resolved.profiles or (() if cluster is not None else (profile,))
    found = possible_profiles(resolved.host.name, settings, named, resolved.gpus, cluster, resolve.profiles())
    if profile.name not in [one.name for one in found]:  # a rehearsal that is a plan for the CPU
        return (profile,)
    return tuple(sorted(found, key=lambda one: one.name != profile.name))


def _plan_of_other(
    profile: Profile,
    resolved: Resolved,
    machine: MachineChoice,
    facts: Facts,
    script: ScriptUse,
) -> Plan | None:
    """Return the plan for another card that may come; None if the job cannot run on it as it was asked for."""
    expected = expected_facts(facts.host_id, machine.machine, profile, facts.precision_evidence)
    try:
        return _plan_for(profile, resolved, expected, script)
    except RefusedError:
        return None


def _plan_for(profile: Profile, resolved: Resolved, facts: Facts | None, script: ScriptUse) -> Plan:
    if resolved.rehearsed_on is not None and not script.takes and not _can_imitate(profile, resolved.job):
        profile, resolved = resolved.rehearsed_on, resolved._replace(rehearsed_on=None)
    if resolved.host.slurm is not None:
        profile = _possible(profile, resolved, facts)[0]
    elif resolved.machine is None or resolved.rehearsed_on is not None:
        profile = cards.profile_for(resolved.gpus, profile)
    model, platform = known_of(resolved, facts)
    if profile.kind == "cuda" and may_need_more(resolved.job):
        evidence = facts.precision_evidence if facts else ()
        about = (profile, resolved.job, model, platform, evidence, None, resolved.teacher)
        rungs = ladder(ladder_inputs(*about, asked=resolved.asked, script=script), resolved.asked).rungs
        resolved = resolved._replace(task=resolved.task._replace(job=with_needed(resolved.job, rungs)))
    on = resolved.rehearsed_on or profile
    known = choose_runtime(on, resolved.host, resolved.job, facts) if facts else WITHOUT_FACTS
    kind = load_runtime(own_runtime(resolved.host) or known)
    sources = resolve.image_sources() if kind.has_images else None
    made = None
    asked = submission_of(profile, resolved, facts)
    is_in_image = asked is not None and bool(asked.container)
    if facts is not None and kind.makes_environments and resolved.job.requirements and not is_in_image:
        made = environment(on, resolved.job, resolved.host, facts, resolve.wheels())
    if is_in_image:
        platform = platform.model_copy(update={"torch": None})
    elif made is not None and made.torch is not None:
        platform = platform.model_copy(update={"torch": made.torch.partition("+")[0]})
    try:
        return make_plan(
            profile,
            resolved.host,
            resolved.job,
            resolved.asked,
            kind.name,
            sources,
            site=site(facts),
            environment=made,
            model=model,
            teacher=resolved.teacher,
            platform=platform,
            evidence=facts.precision_evidence if facts else (),
            rehearsed_on=resolved.rehearsed_on,
            script=script,
            packages_from=resolved.task.packages_from,
            slurm=asked,
        )
    except UnequalSharesError as error:
        # Another batch does not help where the cluster cannot give so many cards.
        of_cluster = limit_findings(resolved.host.name, asked, facts.slurm) if asked and facts else []
        raise refusal(of_cluster) or error from error


def submission_of(profile: Profile, resolved: Resolved, facts: Facts | None) -> Submission | None:
    """Return what Slurm is asked for; None on a host that is no cluster."""
    settings = slurm_settings_of(resolved.host, resolved.job)
    if settings is None:
        return None
    cluster = facts.slurm if facts is not None else None
    return submission(
        settings,
        _possible(profile, resolved, facts),
        cluster,
        is_rehearsed=resolved.rehearsed_on is not None,
        paths=host_paths(resolved.job),
    )


def _can_imitate(profile: Profile, job: Job) -> bool:
    """Whether the start-up hook can let the job's script run as on this card."""
    return profile.kind == "cuda" and job.inject and starts_python(job.command)


def known_of(resolved: Resolved, facts: Facts | None) -> tuple[Model | None, Platform]:
    """Return what is known of the job's model, and of what its precision hangs on."""
    return (resolved.model or facts.model, facts.for_precision) if facts else (resolved.model, Platform())
