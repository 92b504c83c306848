"""Make the plan of a request from a host's facts.

This module loads while the client waits for the host; earlier stages do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.backends.kinds import own_runtime
from launcher.backends.registry import backend_of
from launcher.backends.runtimes import load as load_runtime
from launcher.check.reading.script_use import script_use
from launcher.config import resolve
from launcher.errors import RefusedError, UnequalSharesError
from launcher.planning.assembly import ladder_inputs
from launcher.planning.assembly import plan as make_plan
from launcher.planning.placement import runtime as choose_runtime
from launcher.planning.precision.ladder import ladder
from launcher.planning.script.script import starts_python
from launcher.planning.software.environment_plan import environment
from launcher.planning.software.needed_packages import may_need_more, with_needed
from launcher.planning.software.wheel_choice import site
from launcher.runs.launch.preflight import refusal
from launcher.values.facts import Facts
from launcher.values.job import Job
from launcher.values.model import Model
from launcher.values.plan import Plan, ScriptUse
from launcher.values.precision import Platform
from launcher.values.profile import Profile

if TYPE_CHECKING:
    from launcher.config.resolved import Resolved

WITHOUT_FACTS = "native"
"""The runtime of a preview whose host did not answer."""


def plan_of(profile: Profile, resolved: Resolved, facts: Facts | None) -> Plan:
    """Return the plan. The facts determine the runtime; without facts it is `native`. Raises RefusedError."""
    return plan_with(profile, resolved, facts, script_use(resolved.job, resolved.task.code))


def plan_with(profile: Profile, resolved: Resolved, facts: Facts | None, script: ScriptUse) -> Plan:
    """Return the plan of a job, with plans for the other possible cards. `script` lists the values that its script takes from the plan."""

    def plan_for(other: Profile, expected: Facts) -> Plan | None:
        try:
            return _plan_for(other, resolved, expected, script)
        except RefusedError:
            return None

    plan = _plan_for(profile, resolved, facts, script)
    return backend_of(resolved.host).planning.complete(plan, resolved, facts, plan_for)


def _plan_for(profile: Profile, resolved: Resolved, facts: Facts | None, script: ScriptUse) -> Plan:
    if resolved.rehearsed_on is not None and not script.takes and not _can_imitate(profile, resolved.job):
        profile, resolved = resolved.rehearsed_on, resolved._replace(rehearsed_on=None)
    planning = backend_of(resolved.host).planning
    profile = planning.profile(profile, resolved, facts)
    model, platform = known_of(resolved, facts)
    if profile.kind == "cuda" and may_need_more(resolved.job):
        evidence = facts.precision_evidence if facts else ()
        about = (profile, resolved.job, model, platform, evidence, None, resolved.teacher)
        rungs = ladder(ladder_inputs(*about, asked=resolved.asked, script=script), resolved.asked).rungs
        resolved = resolved._replace(task=resolved.task._replace(job=with_needed(resolved.job, rungs)))
    on = resolved.rehearsed_on or profile
    known = choose_runtime(on, resolved.host, resolved.job, facts) if facts else WITHOUT_FACTS
    kind = load_runtime(own_runtime(resolved.host.kind) or known)
    sources = resolve.image_sources() if kind.has_images else None
    made = None
    resources = planning.resources(profile, resolved, facts)
    has_packages = bool(resolved.job.requirements) and not resources.is_in_image
    if facts is not None and kind.makes_environments and has_packages:
        made = environment(on, resolved.job, resolved.host, facts, resolve.wheels())
    if resources.is_in_image:
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
            resources=resources,
            commit=resolved.commit,
        )
    except UnequalSharesError as error:
        # If the host has too few cards, another batch size does not help: report the cards.
        limits = planning.limits(resolved.host.name, resources, facts) if facts is not None else ()
        raise refusal(limits) or error from error


def _can_imitate(profile: Profile, job: Job) -> bool:
    """Return whether the start-up hook can make the job's script run on a CPU as it would on this card."""
    return profile.kind == "cuda" and job.inject and starts_python(job.command)


def known_of(resolved: Resolved, facts: Facts | None) -> tuple[Model | None, Platform]:
    """Return the known facts about the job's model, and the platform that its precision depends on."""
    return (resolved.model or facts.model, facts.for_precision) if facts else (resolved.model, Platform())
