"""Planning for the jobs of a Slurm cluster."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from launcher.backends.base.planning import Planning, cannot_go_on
from launcher.backends.slurm.apptainer import host_paths
from launcher.backends.slurm.batch_script import batch_script_findings, read_batch_script, with_batch_script
from launcher.backends.slurm.slurm_gate import limit_findings, short_time, slurm_findings
from launcher.backends.slurm.slurm_job import (
    possible_profiles,
    resubmission,
    settings_of,
    submission,
    with_expected_cards,
    with_others,
)
from launcher.backends.slurm.slurm_script import job_script
from launcher.check.reading.script_use import seems_to_resume
from launcher.config.lookup import Lookup
from launcher.errors import UsageError
from launcher.planning.host_resources import MACHINE, HostChecks, Resources
from launcher.planning.placement import requested_gpus
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.plan import Finding, Plan, Submission
from launcher.values.profile import Profile

if TYPE_CHECKING:
    from launcher.backends.base.planning import PlanFor
    from launcher.config.resolve import Task
    from launcher.config.resolved import Resolved


class SlurmPlanning(Planning):
    """The planning for a cluster. Its login node is probed, but the job runs on another node."""

    has_dependencies = True
    needs_probe = True  # because the plan needs the cluster's name of the card
    kept: ClassVar = {
        "slurm.nodes": "the nodes that its batch is divided among",
        "slurm.gres": "the cards that its batch is divided among",
        "slurm.build": "its parent's environment",
        "slurm.image": "its parent's image",
    }

    def read_command(self, task: Task, host: Host) -> Task:
        """Return a task with the keys of its script's `#SBATCH` lines.

        As for sbatch they replace the host's keys, and the job's own replace them. Raises BadFileError.
        """
        script = read_batch_script(task.job.command, task.code, _keys_of_set(task))
        return task if script is None else task._replace(job=with_batch_script(task.job, script, host))

    def check_task(self, task: Task, host: Host) -> None:
        """Raise UsageError for a job whose only image is for Docker."""
        image, settings = task.job.image, settings_of(host, task.job)
        if image is not None and settings is not None and settings.image is None:
            raise UsageError(
                f'image = "{image}" is for containers of Docker, and {host.name} is a Slurm cluster\n'
                f"  by Apptainer   --set slurm.image=docker://{image}"
            )
        super().check_task(task, host)

    def task_findings(self, task: Task, host: Host) -> Iterator[Finding]:
        """Yield a note about a job that may need a second start.

        The note says that the job cannot continue then, or that it has little time to save. Another one says
        what the `#SBATCH` lines of its script ask for.
        """
        settings, job, limit = settings_of(host, task.job), task.job, task.job.time_limit_minutes
        nodes = 1 if settings is None else settings.nodes
        yield from batch_script_findings(task.job.command, task.code, nodes, _keys_of_set(task))
        if settings is None or settings.time_s is None:
            return
        if limit is not None and limit * 60 <= settings.time_s:
            return
        if job.restart or seems_to_resume(job, task.code) is not False:
            yield from short_time(host.name, job.stop_grace_s, settings.time, settings.time_s)
        else:
            mend = "if it resumes from its own file   --set restart=true"
            yield cannot_go_on(host.name, f'its time = "{settings.time}"', mend)

    def image(self, job: Job, host: Host) -> str | None:
        """Return the job's image, for Apptainer or Docker."""
        settings = settings_of(host, job)
        return job.image or (settings.image if settings is not None else None)

    def profile(self, profile: Profile, request: Resolved, facts: Facts | None) -> Profile:
        """Return the planned profile, with the number of cards on each node."""
        return _possible(profile, request, facts)[0]

    def resources(self, profile: Profile, request: Resolved, facts: Facts | None) -> Resources:
        """Return the request to Slurm as resources."""
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
        return resources_of(asked.model_copy(update={"after": request.after}))

    def limits(self, host: str, wanted: Resources, facts: Facts) -> Sequence[Finding]:
        """Return the findings about requested resources that the cluster's limits exclude."""
        asked = wanted.submission
        return limit_findings(host, asked, facts.slurm) if asked is not None else ()

    def complete(self, plan: Plan, request: Resolved, facts: Facts | None, plan_for: PlanFor) -> Plan:
        """Add the plans for the other cards that Slurm may assign."""
        if plan.slurm is None or not plan.slurm.cards or facts is None:
            return plan
        others = [
            plan_for(one, with_expected_cards(facts, one))
            for one in _possible(plan.profile, request, facts)
            if one.name != plan.profile.name
        ]
        return with_others(plan, [other for other in others if other is not None])

    def changed(self, plan: Plan, job: Job) -> Plan:
        """Return the plan with the changed flags of sbatch; the other flags are the parent's."""
        return plan.model_copy(update={"slurm": resubmission(plan.slurm, job.slurm)})

    def gpus_refusals(self, asked: str, plan: Plan) -> Sequence[Finding]:
        """Refuse card ids, because Slurm chooses the cards."""
        _, named = requested_gpus(asked, plan.profile.count)
        if not named:
            return ()
        message = f"--gpus {asked}: Slurm chooses the cards of a job"
        mend = f"how many on each node   --gpus {len(named)}"
        return [Finding(level="refuse", code="no-such-card", message=message, mend=mend)]

    def rows(self, plan: Plan) -> Sequence[tuple[str, str]]:
        """Return rows for the sbatch command, and for the command prefix of a job in an image."""
        asked = plan.slurm
        if asked is None:
            return ()
        image = [("in image", f"{shlex.join(asked.container)} …")] if asked.container else []
        return [("slurm", _command(asked)), *image, *(("after", _after_words(one)) for one in asked.after)]

    def job_script(self, plan: Plan, facts: Facts) -> str:
        """Return the whole script of the run's job."""
        return job_script(plan, facts)

    def environment(self, plan: Plan) -> str:
        """Return a description of the job's Python."""
        asked = plan.slurm
        if plan.environment is None and asked is not None and asked.container:
            return f"python3 of {asked.container[-1]}"
        return super().environment(plan)

    def makes_environment(self, plan: Plan) -> str:
        """Return the place where a plan's environment is built, in words."""
        is_made_in_job = plan.slurm is not None and plan.slurm.build == "job"
        return "in the first job that needs it" if is_made_in_job else "on the login node"

    def own_checks(self, plan: Plan, facts: Facts | None, host: Host) -> HostChecks:
        """Return the cluster's checks for the gate."""
        is_in_image = plan.slurm is not None and bool(plan.slurm.container)
        found = tuple(slurm_findings(plan, facts, host))
        return HostChecks(
            found,
            is_elsewhere=True,
            packages="unknown" if is_in_image else "there",
            one_node="one node   --set slurm.nodes=1",
        )


def resources_of(asked: Submission) -> Resources:
    """Return the resources of a request to Slurm."""
    return Resources(asked.nodes, "scheduled", asked, _command(asked), bool(asked.container))


def _command(asked: Submission) -> str:
    """Return the request to Slurm, and the modules that the job loads, as commands."""
    words = shlex.join(["sbatch", *asked.flags])
    return words if not asked.modules else f"{words}     in the job   module load {' '.join(asked.modules)}"


def _keys_of_set(task: Task) -> frozenset[str]:
    """Return the keys of `slurm` that --set gives, without the table's name."""
    return frozenset(key.removeprefix("slurm.") for key in task.changed if key.startswith("slurm."))


def _after_words(written: str) -> str:
    run, _, condition = written.partition(":")
    return f"{run}, {'once it has ended' if condition == 'any' else 'if it succeeds'}"


def _possible(profile: Profile, request: Resolved, facts: Facts | None) -> tuple[Profile, ...]:
    """Return the profiles of the cards that Slurm may assign, that of the plan first."""
    settings = settings_of(request.host, request.job)
    if settings is None:
        return (profile,)
    cluster = facts.slurm if facts is not None else None
    named = request.profiles or (() if cluster is not None else (profile,))
    found = possible_profiles(request.host.name, settings, named, request.gpus, cluster, Lookup().profiles)
    if profile.name not in [one.name for one in found]:  # a rehearsal, planned for the CPU
        return (profile,)
    return tuple(sorted(found, key=lambda one: one.name != profile.name))
