"""A run that goes on from the newest checkpoint of one that has ended, on the same host, with some keys of its job changed."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.errors import (
    AgentError,
    BadFileError,
    ConnectionLostError,
    InterruptedRunError,
    LaunchError,
    RunError,
    UsageError,
)
from launcher.hosts import Desk
from launcher.planning.assembly import changed, job_of
from launcher.planning.kaggle_machines import planned_machine
from launcher.planning.slurm_job import with_expected_cards
from launcher.runs import (
    build_settings,
    departures,
    env_file,
    job_variables,
    resolve,
    secret_values,
    sent_record,
)
from launcher.runs.contact import Contact, pass_gate_when_free, settle
from launcher.runs.control import known_summary, locate
from launcher.runs.job_check import on_end_findings, undeclared
from launcher.runs.key_stays import check_key_stays
from launcher.runs.launching import Filling, Started, begin
from launcher.runs.mirror import Mirror
from launcher.runs.probing import describe, probe
from launcher.runs.refreshing import refresh
from launcher.runs.request import new_launch
from launcher.runs.run_desk import open_desk
from launcher.runs.secret_consent import check_consent
from launcher.runs.tenancies import RentedMachine, rented_for
from launcher.runs.verifiable import refuse_verification
from launcher.runtimes import open_for_run
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.parsing import build, nearest
from launcher.values.plan import Plan
from launcher.values.record import State, Summary, is_terminal
from launcher.values.slurm_settings import SlurmSettings

if TYPE_CHECKING:
    from launcher.runs.rented_resume import Kept
    from launcher.runs.view import View

FILE = "--set"
_KEPT = {
    "command": "its parent's command",
    "code": "its parent's code",
    "requirements": "its parent's packages",
    "image": "its parent's image",
    "model": "the model that its checkpoint is of",
    "teacher": "the teacher that its model learns from",
    "method": "the weights that its checkpoint holds",
    "attention": "its parent's ladder of precisions",
    "compile": "its parent's ladder of precisions",
    "data": "its parent's data",
    "seed": "the order of its data",
    "batch.global": "the global batch, on which its data's order and its schedule hang",
    "secrets": "its parent's secrets",
    "slurm.nodes": "the nodes that its batch is divided among",
    "slurm.gres": "the cards that its batch is divided among",
    "slurm.build": "its parent's environment",
    "slurm.image": "its parent's image",
}
"""The keys of a job that a resumed run always keeps from its parent, with what each stands for."""
_NAMED = ("settings", "variables", "slurm")
_TABLES = {
    "batch": ("global", "micro"),
    "data": ("train", "eval"),
    "slurm": tuple(SlurmSettings.model_fields),
}


class ResumeRequest(NamedTuple):
    """What a command line asks for: changes KEY=VALUE, the run's name, how long it may wait, and files with its secrets.

    `is_sure`: a plan that the host sent may name secrets, and what is rented may cost much. `profile` is the card of a machine
    that is rented.
    """

    settings: Sequence[str] = ()
    name: str | None = None
    wait_s: float = 0.0
    env_files: Sequence[str] = ()
    is_sure: bool = False
    profile: str | None = None


def resume(word: str, host_name: str | None, request: ResumeRequest, view: View) -> Started:
    """Start a run that goes on where the run that a word means has ended.

    Raises UsageError for a key that such a run cannot have, RunError or InterruptedRunError for a run that cannot be
    gone on with, RefusedError by the gate. When it raises, nothing is left on the host, as for a launch.
    """
    target = None if host_name is None else resolve.host(host_name)
    if target is None or target.lambda_cloud is None:
        if request.profile is not None:
            raise UsageError(
                "--profile: a run is resumed on the card of its host; it is for a machine that is rented\n  e.g.   launch resume RUN --host lambda --profile a100_40gb"
            )
        host, parent = locate(word, host_name)
    else:
        host, parent = locate(word, None)
    kept = rented_for(parent.run)
    if target is not None and target.lambda_cloud is not None and not _is_kept_at(kept, target):
        from launcher.runs.rented_resume import resume_on_rented  # few runs are on a rented machine

        return resume_on_rented(parent, target, request, view)
    if kept is not None and kept.rental.is_open:
        from launcher.runs.rented_resume import resume_on_kept

        return resume_on_kept(kept, parent, lambda heir: _resume(host, parent, request, view, heir))
    return _resume(host, parent, request, view)


def _is_kept_at(found: RentedMachine | None, target: Host) -> bool:
    return found is not None and found.rental.is_open and found.tenancy.machine.name == target.name


def _resume(
    host: Host, parent: Mirror, request: ResumeRequest, view: View, kept: Kept | None = None
) -> Started:
    """Resume a run on its own host. On a machine that is kept, `kept` hears of the new run before it is there."""
    check_settings(request.settings, host)
    name = None if request.name is None else resolve.checked_name(request.name)
    given = env_file.read_all(request.env_files)
    with view.stage("connect") as stage:
        desk = open_desk(host, parent)
        stage.text = desk.about
    try:
        summary = known_summary(desk, parent.run)
        check_ended(summary, parent, request)
        refuse_moved(desk, parent)
        refresh(desk, parent)
        if kept is not None:
            kept.bring_home(desk, view)
        before = parent.whole_plan()
        refuse_verification(before, parent)
        plan = changed_plan(before, request.settings, name, host)
        against = undeclared(plan.settings, before.settings, parent.run)
        settle([*against, *job_variables.findings(plan.variables), *on_end_findings(plan.on_end)], view)
        if not request.is_sure:
            check_consent(plan.secrets, parent, host.name, view, "resume")
        secrets = secret_values.values(job_of(plan), given)
        if kept is not None:
            check_key_stays(host.name, job_of(plan), secrets)
        there = host.model_copy(update={"environment": plan.host_environment})
        with view.stage("probe") as stage:
            facts = probe(desk, there, job_of(plan), planned_machine(plan))
            if there.slurm is not None:
                facts = with_expected_cards(facts, None if plan.rehearsed else plan.profile)
            stage.text = describe(facts)
        view.head(plan)
        deadline = time.monotonic() + request.wait_s
        contact = Contact(there, desk, job_of(plan), facts, view, deadline=deadline)
        contact = pass_gate_when_free(contact, plan)
        build_options = build_settings.read(host, os.environ)
        # The parent's own runtime: it has the image.
        with open_for_run(desk, summary, build_options, contact.facts) as runtime:
            keys = sorted({key for setting in request.settings for key in _keys_of(setting)})
            inherit = functools.partial(_inherit, desk, parent, host, view, keys)
            contact = contact._replace(host=host)
            filling = Filling("resume", lambda child, _stage: inherit(child))
            run = None if kept is None else kept.new_run(plan.job)
            started = begin(contact, runtime, plan, secrets, filling, run)
        with contextlib.suppress(OSError):  # without it, only `recover --abandon` is refused
            sent_record.copy(parent, started.mirror)
        return started
    except BaseException:
        desk.close()
        raise


def check_settings(settings: Sequence[str], host: Host) -> None:
    """Raise UsageError for a change of what a resumed run keeps, BadFileError for a key or a value that no job has."""
    data: dict[str, Any] = {"name": "a", "command": ["a"]}
    for setting in settings:
        for key in _keys_of(setting):
            _check_key(key, setting, host)
        resolve.change(data, setting)
    build(Job, data, file=FILE)


def _check_key(key: str, setting: str, host: Host) -> None:
    top, _, rest = key.partition(".")
    if top not in Job.model_fields or (rest and rest not in _TABLES.get(top, (rest,))):
        kept = {*_KEPT, "name"}
        names = [name for name in Job.model_fields if name in Plan.model_fields and name not in kept]
        allowed = [*(f"{name}.NAME" if name in _NAMED else name for name in names), "batch.micro"]
        words = f"{FILE}: unknown key '{key}'{nearest(key, allowed)}"
        raise BadFileError(f"{words}\n  allowed: {', '.join(allowed)}")
    if top == "name":
        raise UsageError(f"{FILE} {setting}: a resumed run is named by --name")
    if top == "slurm" and host.slurm is None:
        raise UsageError(f"{FILE} {setting}: {host.name} is not a Slurm cluster")
    is_planned = top in Plan.model_fields or top in _TABLES
    kept_as = _KEPT.get(key) or _KEPT.get(top) or (None if is_planned else f"its parent's {top}")
    if kept_as is not None:
        raise UsageError(
            f"{FILE} {setting}: a resumed run keeps {kept_as}\n"
            f"  another one is a new run   launch --host {host.name} {FILE} {setting} …"
        )


def _keys_of(setting: str) -> list[str]:
    """Return the keys that a change touches: those of a table where one is given whole."""
    table: dict[str, Any] = {}
    key = resolve.change(table, setting)
    value = table.get(key)
    return [f"{key}.{name}" for name in value] if isinstance(value, dict) and key in _TABLES else [key]


def changed_plan(parent: Plan, settings: Sequence[str], name: str | None, host: Host) -> Plan:
    """Return the plan of the run that goes on. Raises BadFileError that names key and value."""
    data = job_of(parent).model_dump(mode="json", by_alias=True, exclude_none=True)
    for setting in settings:
        resolve.change(data, setting)
    job = build(Job, {**data, "name": name or parent.job}, file=FILE)
    keys = {key for setting in settings for key in _keys_of(setting)}
    if "on_end" in keys:  # its address may be a secret that the parent did not have
        named = secret_values.with_names(job, ()).secrets
        job, keys = job.model_copy(update={"secrets": tuple(sorted(named))}), keys | {"secrets"}
    return changed(parent, job, keys, host.name)


def check_ended(summary: Summary, parent: Mirror, request: ResumeRequest) -> None:
    """Raise InterruptedRunError, RunError or UsageError for a run whose state does not allow it to be resumed."""
    short = parent.short
    state = summary.state
    if state in (State.INTERRUPTED, State.WAITING):
        raise InterruptedRunError(
            f"{parent.run} is {state}: it has not ended\n  have it go on   launch recover {short}"
        )
    if not is_terminal(state):
        raise RunError(
            f"{parent.run} is {state}: it has not ended\n"
            f"  end it   launch stop {short}     or follow it   launch attach {short}"
        )
    if state == State.SUCCEEDED and not request.settings:
        more = f"steps={2 * summary.step}" if summary.step and summary.step > 0 else "steps=…"
        raise UsageError(
            f"{parent.run} has succeeded: there is nothing left to do\n"
            f"  train on   launch resume {short} --set {more}"
        )


def refuse_moved(desk: Desk, parent: Mirror) -> None:
    """Raise UsageError for a run that goes on elsewhere: it would be trained twice from there."""
    if words := departures.elsewhere(parent):
        raise UsageError(words)
    if (moved := desk.runs.outlook(parent.run).moved) is not None:
        raise UsageError(departures.moved_words(parent, moved))


def _inherit(desk: Desk, parent: Mirror, host: Host, view: View, keys: Sequence[str], child: Mirror) -> str:
    """Have the host give a run what its parent left; return what that is, in words. `keys` are those that were set."""
    try:
        inheritance = desk.preparation.inherit(child.run, parent.run, keys)
    except AgentError as error:
        raise _explained(error, parent) from error
    except ConnectionLostError as error:
        raise ConnectionLostError(
            error.host, f"{error}\n  no run was begun   the same command again"
        ) from error
    for passed in inheritance.passed_over:
        view.note(f"{passed.checkpoint} passed over: {passed.wrong}")
    if inheritance.changes:
        words = ", ".join(f"{name} {value}" for name, value in sorted(inheritance.changes.items()))
        view.note(f"what remedies made of the plan holds on: {words}")
    source = inheritance.parent
    return f"{source.checkpoint} of {source.run}, step {source.step}; code and data as they lie there"


def _explained(error: AgentError, parent: Mirror) -> LaunchError:
    """Return what the agent said against a parent as the error that it is, with what to do."""
    words, short = str(error), parent.short
    if error.code == "steps":
        return UsageError(f"{words}\n  train on   launch resume {short} --set steps=…")
    if error.code in ("no-checkpoint", "cannot-resume", "lost"):
        return RunError(f"{words}\n  begin anew   {new_launch(parent)}")
    if error.code in ("not-ended", "held", "changed"):
        return RunError(f"{words}\n  look   launch ps     again   launch resume {short}")
    return error
