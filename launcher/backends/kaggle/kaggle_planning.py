"""Planning for the sessions of a Kaggle account, and a dry run's view of a session. Nothing is uploaded."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING

from launcher.backends.base.planning import Planning, cannot_go_on
from launcher.backends.base.session_preview import SessionPreview
from launcher.backends.kaggle.kaggle_gate import kaggle_findings, no_secrets
from launcher.backends.kaggle.kaggle_host import KaggleSettings, settings_of
from launcher.backends.kaggle.kaggle_kernel import NO_ACCELERATOR
from launcher.backends.kaggle.kaggle_machines import expected_facts
from launcher.backends.kaggle.kaggle_script import MAX_BYTES, parts
from launcher.backends.kaggle.kaggle_service import quota_or_why
from launcher.backends.kaggle.kaggle_session import segment_settings, session
from launcher.backends.spool.segment_files import Member
from launcher.check.reading.script_use import seems_to_resume
from launcher.config import resolve
from launcher.errors import UsageError
from launcher.planning.host_resources import HostChecks, Resources
from launcher.planning.placement import requested_gpus
from launcher.planning.precision.ladder import is_too_large_as_asked
from launcher.transport.agent_file import agent_file
from launcher.upload.tree import CodeTree
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.plan import Finding, Plan
from launcher.values.profile import Profile

if TYPE_CHECKING:
    from launcher.backends.base.planning import PlanFor
    from launcher.config.resolve import Task
    from launcher.config.resolved import Resolved
    from launcher.upload.tree import CodeTree


SESSION = Resources(cards="given")
"""The cards of a session belong to its run alone."""


class KagglePlanning(Planning):
    """The planning for an account."""

    def refusals(self, job: Job, host: Host) -> tuple[Finding, ...]:
        """Return the refusal of a job's secrets, if it has any."""
        return no_secrets(host.name, job.secrets)

    def task_findings(self, task: Task, host: Host) -> Iterator[Finding]:
        """Yield a note if a job may be longer than a session and cannot continue in the next one."""
        job, limit = task.job, task.job.time_limit_minutes
        is_short = limit is not None and limit <= settings_of(host).session_hours * 60
        if not job.restart and not is_short and seems_to_resume(job, task.code) is False:
            yield cannot_go_on(host.name, "a session", "let it save and resume with launcher_worker")

    def profile(self, profile: Profile, request: Resolved, facts: Facts | None) -> Profile:
        """Return the profile of all cards of the chosen machine, whatever --gpus asks for."""
        is_chosen = request.machine is not None and request.rehearsed_on is None
        return profile if is_chosen else super().profile(profile, request, facts)

    def resources(self, profile: Profile, request: Resolved, facts: Facts | None) -> Resources:
        """Return the resources of a session."""
        return SESSION

    def complete(self, plan: Plan, request: Resolved, facts: Facts | None, plan_for: PlanFor) -> Plan:
        """Add to a plan its sessions, with the plans for the other possible cards."""
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

    def gpus_refusals(self, asked: str, plan: Plan) -> Sequence[Finding]:
        """Refuse --gpus for some of a session's cards: the run gets all of them."""
        count, named = requested_gpus(asked, plan.profile.count)
        if plan.rehearsed or (not named and count == plan.profile.count):
            return ()
        message = (
            f"--gpus {asked}: a session of {plan.host} has {plan.profile.title}, all of them for its run"
        )
        mend = "launch it without --gpus"
        return [Finding(level="refuse", code="no-such-card", message=message, mend=mend)]

    def preview(self, plan: Plan, host: Host, place: str, tree: CodeTree) -> SessionPreview | None:
        """Return a preview of the first session."""
        return preview_session(plan, settings_of(host), place, tree)

    def own_checks(self, plan: Plan, facts: Facts | None, host: Host) -> HostChecks:
        """Return the checks of a session for the gate. A session installs the packages that it lacks."""
        found = kaggle_findings(plan, settings_of(host), facts)
        return HostChecks(tuple(found), packages="installed")


RUN = "000000-dry-run-000000"


def preview_session(
    plan: Plan, settings: KaggleSettings, place: str, tree: CodeTree
) -> SessionPreview | None:
    """Return a preview of a plan's first session; None for a plan without sessions.

    Raises UsageError for a file that cannot be read.
    """
    if plan.session is None:
        return None
    session_s = settings.session_hours * 3600
    told = segment_settings(plan, run=RUN, place=place, internet=settings.internet, session_s=session_s)
    run = [Member.of("control/plan.json", plan.to_file()), *_members(tree)]
    try:
        made_of = parts(agent_file().data, told, run)
    except OSError as error:
        raise UsageError(f"{error.filename or 'a file'} cannot be read: {error.strerror or error}") from error
    machine = plan.session.machine
    title = "without a card" if machine == NO_ACCELERATOR else machine
    quota = quota_or_why(settings.api)
    return SessionPreview(machine, title, settings.session_hours, made_of, MAX_BYTES, quota)


def _members(tree: CodeTree) -> list[Member]:
    """Return the files of code and data at their paths in the run's folder."""
    return [
        Member(
            f"work/{entry.path}",
            0 if entry.link is not None else entry.size,
            functools.partial(_open, entry.source),
            is_executable=entry.is_file and os.access(entry.source, os.X_OK),
            link=entry.link,
            is_folder=entry.folder is not None,
        )
        for entry in tree.entries
    ]


def _open(path: str) -> IO[bytes]:
    return open(path, "rb")
