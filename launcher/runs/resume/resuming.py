"""Resume: start a new run from the newest checkpoint of an ended one, on the same host, with some keys of its job changed."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.backends.registry import backend_of
from launcher.backends.runtimes import open_for_run
from launcher.config import build_settings, env_file, job_variables, resolve, secret_values
from launcher.config.command_check import by_the_worker
from launcher.config.job_check import on_end_findings, undeclared
from launcher.config.lookup import Lookup
from launcher.copy.local_copy import LocalCopy
from launcher.copy.request import new_launch
from launcher.copy.run_id import new_run_id
from launcher.errors import (
    AgentError,
    ConnectionLostError,
    LaunchError,
    RunError,
    UsageError,
)
from launcher.planning.assembly import job_of
from launcher.rental.records import RentedMachine, rented_for
from launcher.runs.follow import evidence
from launcher.runs.follow.refreshing import refresh
from launcher.runs.follow.summaries import known_summary
from launcher.runs.launch.launching import Started, UploadStage, begin
from launcher.runs.launch.preflight import ConnectedHost, pass_gate_when_free, settle
from launcher.runs.launch.verifiable import refuse_verification
from launcher.runs.locating import locate
from launcher.runs.rented.api_key_guard import check_key_is_not_sent
from launcher.runs.rented.rented_runs import pass_on
from launcher.runs.resume.resumed_plan import (
    ResumeRequest,
    changed_plan,
    check_ended,
    check_settings,
    refuse_moved,
)
from launcher.runs.resume.secret_consent import check_consent
from launcher.runs.run_client import open_client
from launcher.transport.client.host_client import HostClient
from launcher.upload import upload_record
from launcher.values.host import Host

if TYPE_CHECKING:
    from launcher.rental.lease.rental_lease import Lease
    from launcher.runs.follow.view import View
    from launcher.values.plan import Plan


def resume(word: str, host_name: str | None, request: ResumeRequest, view: View) -> Started:
    """Start a run that continues from the last checkpoint of the run that a word means.

    Raises UsageError for a key that a resumed run cannot have, RunError or InterruptedRunError for a run that
    cannot be resumed, RefusedError if the gate refuses the plan. After an error, no data is left on the host,
    as for a launch.
    """
    target = None if host_name is None else Lookup().host(host_name)
    if target is not None and backend_of(target).running.rental(target) is None:
        target = None  # the host rents no machines: the run resumes on that host
    if target is None and request.profile is not None:
        raise UsageError(
            "--profile is only for a machine to rent: on its own host, a run is resumed on that host's card\n  e.g.   launch resume RUN --host lambda --profile a100_40gb"
        )
    host, parent = locate(word, host_name if target is None else None)
    kept = rented_for(parent.run)
    if target is not None and not _is_kept_at(kept, target):
        if request.command:
            raise UsageError(
                "a command is only for a run's own host: there are the files that its script wrote"
            )
        from launcher.runs.rented.rented_resume import resume_on_rented  # few runs are on a rented machine

        return resume_on_rented(parent, target, request, view)
    if kept is not None and kept.rental.is_open:
        from launcher.runs.rented.rented_resume import resume_on_kept

        return resume_on_kept(kept, parent, lambda lease: _resume(host, parent, request, view, lease))
    return _resume(host, parent, request, view)


def _is_kept_at(found: RentedMachine | None, target: Host) -> bool:
    return found is not None and found.rental.is_open and found.record.machine.name == target.name


def _resume(
    host: Host, parent: LocalCopy, request: ResumeRequest, view: View, lease: Lease | None = None
) -> Started:
    """Resume a run on its own host.

    The `lease` of a kept machine passes to the new run's id before that run is created.
    """
    check_settings(request.settings, host)
    name = None if request.name is None else resolve.checked_name(request.name)
    given = env_file.read_all(request.env_files)
    with view.stage("connect") as stage:
        client = open_client(host, parent)
        stage.text = client.about
    try:
        summary = known_summary(client, parent.run)
        refuse_moved(client, parent)
        refresh(client, parent)
        check_ended(summary, parent, request)
        if lease is not None:
            from launcher.runs.rented.final_download import download_files  # few runs are on a rented machine

            # The process that later ends the rental downloads only the new run's files.
            download_files(client, parent, view)
        before = parent.whole_plan()
        refuse_verification(before, parent)
        plan = changed_plan(before, request, name, host)
        ended = parent.state()
        if ended is not None and evidence.own_checkpoint(ended.evidence) is not None:
            _refuse_ignored(request.keys, plan, parent)
        against = undeclared(plan.settings, before.settings, parent.run)
        settle([*against, *job_variables.findings(plan.variables), *on_end_findings(plan.on_end)], view)
        if not request.is_sure:
            check_consent(plan.secrets, parent, host.name, view, "resume")
        secrets = secret_values.values(job_of(plan), given)
        if lease is not None:
            check_key_is_not_sent(host.name, job_of(plan), secrets)
        there = host.model_copy(update={"environment": plan.host_environment})
        with view.stage("probe") as stage:
            probing = backend_of(there).probing
            facts = probing.probe_again(client, there, plan)
            stage.text = probing.describe(facts)
        view.head(plan)
        deadline = time.monotonic() + request.wait_s
        contact = ConnectedHost(there, client, job_of(plan), facts, view, deadline=deadline)
        contact = pass_gate_when_free(contact, plan)
        build_options = build_settings.read(host, os.environ)
        # Use the parent's runtime, which has the image.
        with open_for_run(client, summary, build_options, contact.facts) as runtime:
            inherit = functools.partial(_inherit, client, parent, host, view, request.keys, plan)
            contact = contact._replace(host=host)
            filling = UploadStage("resume", lambda child, _stage: inherit(child))
            run = None
            if lease is not None:
                run = new_run_id(plan.job)
                pass_on(lease, run)
            started = begin(contact, runtime, plan, secrets, filling, run)
        with contextlib.suppress(OSError):  # the record of the upload is needed only for `recover --abandon`
            upload_record.copy(parent, started.local_copy)
        return started
    except BaseException:
        client.close()
        raise


def _inherit(
    client: HostClient,
    parent: LocalCopy,
    host: Host,
    view: View,
    keys: Sequence[str],
    plan: Plan,
    child: LocalCopy,
) -> str:
    """Have the host give a run its parent's files and state; return a summary.

    `keys` are the keys of the job that the user changed, `plan` is the new run's plan. Raises UsageError for a key that the script does not get.
    """
    try:
        inheritance = client.preparation.inherit(child.run, parent.run, keys)
    except AgentError as error:
        raise _explained(error, parent) from error
    except ConnectionLostError as error:
        raise ConnectionLostError(
            error.host, f"{error}\n  no run was begun; type the same command again"
        ) from error
    for passed in inheritance.passed_over:
        view.note(f"{passed.checkpoint} passed over: {passed.wrong}")
    if inheritance.changes:
        words = ", ".join(f"{name} {value}" for name, value in sorted(inheritance.changes.items()))
        view.note(f"the remedies' changes to the plan stay in force: {words}")
    source = inheritance.parent
    if source.is_trainers is not None:
        _refuse_ignored(keys, plan, parent)
    return f"{source.words} of {source.run}; with its code and data as they are on the host"


def _refuse_ignored(keys: Sequence[str], plan: Plan, parent: LocalCopy) -> None:
    """Raise UsageError for a changed key that reaches a script only through the worker, which this script does not use."""
    ignored = [key for key in keys if key.partition(".")[0] in by_the_worker(adapts=plan.adapt)]
    if ignored:
        option = f"--{ignored[0].rpartition('.')[2]}"
        raise UsageError(
            f"--set {', '.join(ignored)}: the script of {parent.run} does not use the worker, so nothing would use it\n"
            f"  an option of the script   launch resume {parent.short} -- {shlex.join(plan.command)} {option} …"
        )


def _explained(error: AgentError, parent: LocalCopy) -> LaunchError:
    """Convert the agent's refusal of a parent into launcher's error, with the command to use."""
    words, short = str(error), parent.short
    if error.code == "steps":
        return UsageError(f"{words}\n  train further   launch resume {short} --set steps=…")
    if error.code in ("no-checkpoint", "cannot-resume", "lost"):
        return RunError(f"{words}\n  start again   {new_launch(parent)}")
    if error.code == "command":
        return UsageError(f"{words}\n  its settings   launch resume {short} --set KEY=VALUE")
    if error.code == "own-checkpoint":
        command = shlex.join(parent.whole_plan().command)
        return RunError(f"{words}\n  add it here   launch resume {short} -- {command} …")
    if error.code in ("not-ended", "held", "changed"):
        return RunError(f"{words}\n  look   launch ps     again   launch resume {short}")
    return error
