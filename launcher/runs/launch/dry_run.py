"""Preview a launch without starting it: its plan and the findings, or its ladder of precisions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends.registry import backend_of
from launcher.check.reading.script_use import script_use
from launcher.config import command_check, included_jobs, job_check, resolve, secret_values
from launcher.config.lookup import Lookup
from launcher.config.resolved import Resolved
from launcher.copy.request import Request
from launcher.errors import HostError, RefusedError
from launcher.planning.assembly import ladder_inputs
from launcher.planning.gate import model_room
from launcher.planning.host_resources import Resources
from launcher.planning.model_size_findings import unknown_model
from launcher.planning.placement import cards_of
from launcher.planning.precision.ladder import Ladder, LadderInputs, ladder, too_large
from launcher.runs.launch import cards
from launcher.runs.launch.adapting import script_findings, suggestion
from launcher.runs.launch.planned import known_of, plan_of
from launcher.runs.launch.resolved_request import AUTO, secrets_for, there, understand
from launcher.runs.run_client import connect
from launcher.upload.loading import load
from launcher.upload.upload_history import UploadHistory
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.plan import Finding, Plan, PlanValue
from launcher.values.profile import Profile
from launcher.values.upload_selection import UploadSelection

if TYPE_CHECKING:
    from launcher.backends.base.session_preview import SessionPreview
    from launcher.rental.price import RentalChoice


class Preview(NamedTuple):
    """A host, its plan, the gate's findings and the upload; a preview of the first session, or of the rental.

    `job_script` is what the host's scheduler gets, empty if it has none.
    """

    host: Host
    plan: Plan
    findings: tuple[Finding, ...]
    selection: UploadSelection
    session: SessionPreview | None = None
    rental: RentalChoice | None = None
    job_script: str = ""


def preview(
    request: Request,
    facts: Facts | None = None,
    lookup: Lookup | None = None,
    silence: HostError | None = None,
    *,
    is_of_batch: bool = False,
) -> Preview:
    """Return the plan and the gate's findings. No finding raises an error, and the host is not changed.

    In a batch, runs that differ only by a setting that nothing uses are repetitions, which the batch's check notes.

    A value that a launch would refuse to record is left out of the plan. With the facts of an earlier probe,
    or its error (`silence`), no connection is made. Raises UsageError as a launch does, also for a secret
    that is not set. Raises HostError only if the plan depends on the probe: no profile is named, or the name
    fits several.
    """
    resolved = understand(request, lookup)
    host, profiles = resolved.host, resolved.profiles
    backend = backend_of(host)
    planning = backend.planning
    if not planning.refusals(resolved.job, host):
        secrets_for(resolved)
    of_job = [
        *job_check.findings(resolved.task),
        *([] if is_of_batch else command_check.ignored_settings(resolved.task)),
        *secret_values.findings(resolved.values),
    ]
    resolved = resolved._replace(task=job_check.without_refused(resolved.task))
    loaded = load(resolved.task, request.env_files)
    resolved = resolved._replace(commit=loaded.tree.commit)
    question = None if request.is_sure else UploadHistory(resolved.task.code, host).question(loaded)
    unreached: tuple[Finding, ...] = ()
    rental: RentalChoice | None = None
    if facts is None and backend.running.rental(host) is not None:
        from launcher.backends.base.rental_choice import expected
        from launcher.runs.rented.rental_agreement import preview_rental  # few hosts rent

        try:
            rental, unreached = preview_rental(resolved, is_sure=request.is_sure)
        except HostError as error:
            if len(profiles) != 1:
                raise
            unreached = (_not_reached(error),)
        if rental is not None:
            facts, profiles = expected(host, rental), (rental.first.profile,)
    elif facts is None:
        try:
            if silence is not None:
                raise silence
            with connect(host) as client:
                facts = backend.probing.probe(client, host, resolved.job, resolved.machine)
        except HostError as error:
            if not profiles:
                raise
            facts = backend.probing.expected(host, resolved.machine)
            if facts is None and len(profiles) > 1:
                choices = " or ".join(profile.name for profile in profiles)
                words = f"{error}\n  without its probe the profile is not clear: name {choices}"
                raise HostError(error.host, words) from error
            unreached = (_not_reached(error),)
    resolved = resolved._replace(profiles=profiles)
    if facts is not None:
        facts, profile, _ = there(resolved, facts)
    else:
        profile = profiles[0]
    try:
        plan = plan_of(profile, resolved, facts)
        refused: tuple[Finding, ...] = ()
    except RefusedError as error:
        plan = plan_of(profile, _with_nothing_asked(resolved), facts)
        refused = (Finding(level="refuse", code="precision-excluded", message=str(error)),)
    asked = cards.findings(resolved.gpus, plan, host, facts)
    of_script = command_check.findings(resolved.job, loaded.selection)
    against = [*refused, *of_job, *loaded.selection.findings, *of_script]
    if question is not None:
        against.append(question)
    against += resolved.machine.notes if resolved.machine is not None else ()
    against += planning.task_findings(resolved.task, host)
    against += suggestion(plan) if facts is None else [*suggestion(plan), *unknown_model(plan)]
    against += command_check.without_effect(plan, resolved.asked, resolved.job, rehearses=request.rehearses)
    against += script_findings(plan, resolved.task)
    if facts is not None:
        against += command_check.not_installed(plan, facts, resolved.job, resolved.task.code)
    found = planning.check(plan, facts, host, resolve.wheels(), resolve.cards())
    findings = (*against, *unreached, *asked, *found)
    place = facts.host_id if facts is not None else host.name
    session = planning.preview(plan, host, place, loaded.tree)
    script = planning.job_script(plan, facts) if facts is not None else ""
    return Preview(host, plan, findings, loaded.selection, session, rental, script)


def _not_reached(error: HostError) -> Finding:
    return Finding(level="note", code="not-reached", message=f"not checked against the host: {error}")


class Explanation(NamedTuple):
    """The inputs of a ladder, the ladder, the findings about the job on this machine, and the job.

    `takes` are the values that the job's script takes from a plan, `resources` the run's resources on its
    host.
    """

    inputs: LadderInputs
    ladder: Ladder
    findings: tuple[Finding, ...]
    job: Job
    takes: tuple[PlanValue, ...]
    resources: Resources


def explain(request: Request, facts: Facts | None = None) -> Explanation:
    """Return the ladder of a request. Raises RefusedError if the requested precision is excluded.

    The host is probed if the request names no profile, or several. A cluster is probed in any case, for its
    name of the card; if the request names one profile, the cluster need not answer.
    """
    resolved = understand(request)
    backend = backend_of(resolved.host)
    if facts is None:
        facts = backend.probing.expected(resolved.host, resolved.machine)
    is_clear = len(resolved.profiles) == 1
    if facts is None and not is_clear and backend.running.rental(resolved.host) is not None:
        from launcher.backends.base.rental_choice import expected
        from launcher.runs.rented.rental_agreement import choice_for

        rental = choice_for(resolved)
        facts = expected(resolved.host, rental)
        resolved = resolved._replace(profiles=(rental.first.profile,))
    elif facts is None and (not is_clear or backend.planning.needs_probe):
        try:
            with connect(resolved.host) as client:
                facts = backend.probing.probe(client, resolved.host, resolved.job)
        except HostError:
            if not is_clear:
                raise
    profile = there(resolved, facts).profile if facts else resolved.profiles[0]
    model, platform = known_of(resolved, facts)
    evidence = facts.precision_evidence if facts else ()
    script = script_use(resolved.job, resolved.task.code)
    resources = backend.planning.resources(profile, resolved, facts)
    about = (model, platform, evidence, platform.torch, resolved.teacher)
    asked, count = resolved.asked, resources.nodes
    case = ladder_inputs(profile, resolved.job, *about, asked=asked, script=script, count=count)
    found = ladder(case, resolved.asked)
    of_job = (one for one in job_check.findings(resolved.task) if one.code not in included_jobs.OF_DATA)
    findings = (*of_job, *_of_several(resolved, profile, facts))
    if too_large(case, found.rungs[0]):
        with contextlib.suppress(RefusedError):  # a plan may be refused for more reasons than its ladder
            findings = (*findings, *model_room(plan_of(profile, resolved, facts), resolve.cards()))
    return Explanation(case, found, findings, resolved.job, script.takes or (), resources)


def _of_several(resolved: Resolved, profile: Profile, facts: Facts | None) -> list[Finding]:
    """Return a note if a name fits several cards and the host has none of them: the first is used."""
    names = [one.name for one in resolved.profiles]
    if len(names) < 2 or facts is None or cards_of(profile, facts):
        return []
    message = f"the profile's name fits {' and '.join(names)}, and {resolved.host.name} has none of them: this is {profile.name}"
    mend = "     ".join(f"--profile {name}" for name in names if name != profile.name)
    return [Finding(level="note", code="several-profiles", message=message, mend=mend)]


def _with_nothing_asked(resolved: Resolved) -> Resolved:
    """Return a request without its precision, attention and compile, to preview the plan of a refused one."""
    job = resolved.job.model_copy(update={"attention": "sdpa", "compile": False})
    return resolved._replace(asked=AUTO, task=resolved.task._replace(job=job))
