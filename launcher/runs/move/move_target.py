"""Prepare the new host of a moved run, whether or not the old host answers.

All refusals come first. Then the successor gets its checkpoint, its code and data, and is started.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from launcher.backends.registry import backend_of
from launcher.backends.runtimes import open_for_plan
from launcher.base.meter import Meter
from launcher.config import build_settings, env_file, resolve, secret_values
from launcher.config.lookup import Lookup
from launcher.config.resolved import Resolved
from launcher.copy import move_records
from launcher.copy.local_copy import LocalCopy
from launcher.copy.run_id import RUN_ID, new_run_id
from launcher.errors import AgentError, HostError, RunError, UsageError
from launcher.planning.assembly import job_of
from launcher.rental.records import is_rented, rented_for
from launcher.runs.follow.summaries import known_summary, summary_of
from launcher.runs.launch.launching import Started, UploadStage, begin
from launcher.runs.launch.planned import plan_with
from launcher.runs.launch.preflight import ConnectedHost, pass_gate_when_free
from launcher.runs.launch.resolved_request import there
from launcher.runs.launch.verifiable import refuse_verification
from launcher.runs.launch.wanted_machine import Wanted
from launcher.runs.locating import own_copy
from launcher.runs.pull import checkpoints_here
from launcher.runs.rented.api_key_guard import check_key_is_not_sent
from launcher.runs.rented.lost_machines import end_rental, look_for
from launcher.runs.resume.recovering import RecoverRequest, Recovery, RecoveryOutcome, recover_on
from launcher.runs.resume.secret_consent import check_consent
from launcher.runs.run_client import connect
from launcher.upload import upload_record
from launcher.upload.tree import SizedFile, write_files
from launcher.values.record import Reason, State, is_terminal

if TYPE_CHECKING:
    from launcher.runs.follow.view import Stage, View
    from launcher.runs.pull.checkpoint_pulling import LocalCheckpoint
    from launcher.transport.client.host_client import HostClient
    from launcher.values.host import Host
    from launcher.values.plan import Plan
    from launcher.values.reported.answers import MovedTo


class MoveRequest(NamedTuple):
    """The request for a move: the host, the card if named, secret files, and consent to secrets in a plan from a host.

    `abandons`: move even if the old host does not answer.
    """

    host: str
    profile: str | None = None
    env_files: Sequence[str] = ()
    is_sure: bool = False
    wait_s: float = 0.0
    abandons: bool = False


class Successor(NamedTuple):
    """The id of a run's successor, None for a new one, and its plan if it was already shown.

    `derived_from` is the plan from which the successor's plan is derived; None means the moved run's plan.
    `expect` is called with the id before the id is recorded anywhere.
    """

    run: str | None = None
    shown: Plan | None = None
    derived_from: Plan | None = None
    expect: Callable[[str], None] = lambda _run: None

    def id_of(self, job: str) -> str:
        """Return the successor's id."""
        run = self.run or new_run_id(job)
        self.expect(run)
        return run


class MoveTarget(NamedTuple):
    """A new host for a run: the gate has accepted the run's plan, and the run's secrets are available."""

    local_copy: LocalCopy
    contact: ConnectedHost
    plan: Plan
    secrets: Mapping[str, str]


def connected(view: View, dial: Callable[[], HostClient]) -> HostClient:
    """Open a host client, shown as a stage."""
    with view.stage("connect") as stage:
        client = dial()
        stage.text = f"{client.host}, {client.about}"
    return client


def refuse_succeeded(state: str | None, local_copy: LocalCopy, host: str) -> None:
    """Raise UsageError for a run that has succeeded."""
    if state == State.SUCCEEDED:
        words = f"{local_copy.run} has succeeded: there is nothing left to move"
        raise UsageError(f"{words}\n  run it again there   launch rerun {local_copy.short} --host {host}")


def refuse_unresumable(*, resumes: bool, local_copy: LocalCopy, host: str) -> None:
    """Raise RunError for a run whose script would start at step 1 again."""
    if not resumes:
        words = f"the script of {local_copy.run} never called worker.resume_from(): it would start at step 1 again"
        raise RunError(f"{words}\n  start again there   launch rerun {local_copy.short} --host {host}")


class EarlierMove(NamedTuple):
    """The result of an earlier move: its successor was recovered, or given up because it never began."""

    recovery: Recovery | None = None
    given_up: str | None = None


def taken_up(
    new: HostClient, local_copy: LocalCopy, moved: MovedTo, target: Host, request: MoveRequest, view: View
) -> EarlierMove:
    """Recover the successor of an earlier move. If it never began, make sure that it never will.

    The caller then makes the move again, to this host or another. Raises UsageError if the successor may be
    on another host, and RunError if the old host's record does not name a run.
    """
    check_successor(local_copy, moved)
    short = moved.run.rpartition("-")[2]
    if moved.root != new.root_id:
        return EarlierMove(given_up=give_up_elsewhere(local_copy, moved, view))
    if _give_up(new, moved, view):
        return EarlierMove(given_up=moved.run)
    next_run, child = own_copy(moved.run), known_summary(new, moved.run)
    if child.parent is None or child.parent.run != local_copy.run:
        words = f"{local_copy.host().name} says that {local_copy.run} was moved to {new.host} as {moved.run}, but that run is not its successor"
        raise RunError(
            f"{words}\n  start again there   launch rerun {local_copy.short} --host {request.host}"
        )
    next_run.bind_seen(target, new.root_id, child.time)
    if is_terminal(child.state):
        words = f"{local_copy.run} was moved to {new.host} as {moved.run}, which has {child.state}"
        raise UsageError(f"{words}\n  a new run from its last checkpoint   launch resume {short}")
    return EarlierMove(recover_on(new, next_run, RecoverRequest(request.env_files, request.is_sure), view))


def give_up_elsewhere(local_copy: LocalCopy, moved: MovedTo, view: View) -> str:
    """Give up a successor on another host if it never began or is lost; return its id.

    Raises UsageError if it may continue.
    """
    check_successor(local_copy, moved)
    if _is_known(local_copy, moved) and _is_given_up(moved, view):
        return moved.run
    short = moved.run.rpartition("-")[2]
    words = f"{local_copy.run} was moved to {moved.host or 'another host'} as {moved.run}"
    state = own_copy(moved.run).state()
    if state is not None and is_terminal(state.state):
        raise UsageError(f"{words}, which has {state.state}\n  that run   launch attach {short}")
    raise UsageError(
        f"{words}\n  that run   launch recover {short} --host {shlex.quote(moved.host or 'HOST')}"
    )


def check_successor(local_copy: LocalCopy, moved: MovedTo) -> None:
    """Raise RunError unless a host's record of a successor is a run id, because the id becomes a path here."""
    if not RUN_ID.fullmatch(moved.run):
        raise RunError(
            f"{local_copy.run}: its host says that it continues as {moved.run!r}, which is not a run"
        )


def _is_known(local_copy: LocalCopy, moved: MovedTo) -> bool:
    """Return whether this user's settings or own record name a successor's host.

    Never connect to a host that only an old host named.
    """
    own = move_records.intention_of(local_copy)
    return moved.host in Lookup().hosts or (own is not None and own.to == moved)


def _is_given_up(moved: MovedTo, view: View) -> bool:
    """Give up a successor on another host, if that host answers and the successor never began; return whether it was given up.

    A successor whose rented machine is gone is lost, unless a checkpoint of it is here.
    """
    rented = rented_for(moved.run)
    if rented is not None and not look_for(rented).rental.is_open:
        return _is_lost(moved, view)
    try:
        host = Lookup().host(moved.host) if rented is None else rented.record.machine
        with connected(view, functools.partial(connect, host)) as other:
            is_given_up = other.root_id == moved.root and _give_up(other, moved, view)
    except (UsageError, HostError):
        return False
    if is_given_up and rented is not None:
        end_rental(rented, "its run never began", view)
    return is_given_up


def _is_lost(moved: MovedTo, view: View) -> bool:
    if checkpoints_here.newest_whole(own_copy(moved.run)).newest is not None:
        return False
    view.note(f"{moved.run}: its rented machine is gone, and no checkpoint of it is here")
    return True


def _give_up(client: HostClient, moved: MovedTo, view: View) -> bool:
    """Give up a successor that never started, or that its host does not have or created only in part; return whether it was given up."""
    child = summary_of(client, moved.run)
    if child is not None and child.state == State.FAILED and child.reason == Reason.NEVER_STARTED:
        view.note(f"{moved.run} never started on {client.host}")
        return True
    if child is not None and not client.runs.outlook(moved.run).half_made:
        return False
    return client.preparation.forgo(moved.run)


def consented(
    local_copy: LocalCopy, before: Plan, target: Host, sender: str, request: MoveRequest, view: View
) -> Mapping[str, str]:
    """Return the secrets of a run for another host, once the user agrees to send them.

    `sender` is the host that sent the run's plan, if this client did not make it.
    """
    refuse_verification(before, local_copy)
    if not request.is_sure:
        check_consent(before.secrets, local_copy, sender, view, f"recover --host {target.name}")
    job = job_of(before)
    secrets = secret_values.values(job, env_file.read_all(request.env_files))
    if backend_of(target).running.rental(target) is not None or is_rented(target):
        check_key_is_not_sent(target.name, job, secrets)
    return secrets


def arrival(
    new: HostClient,
    local_copy: LocalCopy,
    target: Host,
    sender: str,
    request: MoveRequest,
    next_run: Successor,
    view: View,
) -> MoveTarget:
    """Check whether a run can continue on a host. Raises the gate's errors, before the host is changed."""
    before = next_run.derived_from or local_copy.whole_plan()
    secrets = consented(local_copy, before, target, sender, request, view)
    job = job_of(before)
    with view.stage("probe") as stage:
        probing = backend_of(target).probing
        facts = probing.probe(new, target, job)
        stage.text = probing.describe(facts)
    resolved = resolved_there(before, target, request.profile)
    facts, profile, _ = there(resolved, facts)
    # The plan is derived anew for the new card; global batch, seed and schedule are those of the job.
    plan = plan_with(profile, resolved, facts, before.script_use)
    if next_run.shown is None or plan.digest != next_run.shown.digest:
        view.head(plan)
    deadline = time.monotonic() + request.wait_s
    is_rented = next_run.shown is not None
    contact = ConnectedHost(target, new, job_of(plan), facts, view, deadline=deadline, is_rented=is_rented)
    contact = pass_gate_when_free(contact, plan)
    new.preparation.check_sources(plan)
    return MoveTarget(local_copy, contact, plan, secrets)


def resolved_there(before: Plan, target: Host, profile_name: str | None) -> Resolved:
    """Return the request to launch the same run on another host; its micro-batch is chosen anew."""
    job = job_of(before)
    job = job.model_copy(update={"batch": job.batch.model_copy(update={"micro": None})})
    named = () if profile_name is None else Lookup().profiles_meant(profile_name)
    here = Path.cwd()
    task = resolve.Task(job, here, here, frozenset(), None, packages_from=before.packages_from)
    return Resolved(target, named, task, "auto", before.model_facts, None, None, teacher=before.teacher_facts)


def wanted_like(before: Plan, target: Host, request: MoveRequest) -> Wanted:
    """Return the machine requirements of a successor; if the request names no card, offers with the plan's card are preferred."""
    resolved = resolved_there(before, target, request.profile or target.profile)
    return Wanted(
        target,
        resolved.profiles,
        resolved.gpus,
        resolved.job,
        lambda profile, facts: plan_with(profile, resolved, facts, before.script_use),
        like=(before.profile,),
        is_sure=request.is_sure,
        wait_s=request.wait_s,
    )


def go_on(
    arrival: MoveTarget, run: str, home: LocalCheckpoint, fill: Callable[[LocalCopy, Stage], str]
) -> Recovery:
    """Begin the successor under its id, with the files from `fill`, and leave it running."""
    local_copy, new = arrival.local_copy, arrival.contact.client
    try:
        started = begin_there(arrival, run, home, fill)
    except AgentError as error:
        if error.code not in ("run-exists", "forgone"):
            raise
        words = f"{local_copy.run} is being moved to {new.host} as {run} by another client"
        again = f"launch recover {local_copy.short} --host {arrival.contact.host.name}"
        raise RunError(f"{words}\n  look again   {again}") from error
    started.interrupts.release()
    words = f"from step {home.checkpoint.step} of {local_copy.run}"
    return Recovery(run, new.host, RecoveryOutcome.RECOVERED, State.RUNNING, words)


def begin_there(
    arrival: MoveTarget, run: str, home: LocalCheckpoint, fill: Callable[[LocalCopy, Stage], str]
) -> Started:
    """Begin a run that continues another, under its id, with the files from `fill`."""
    local_copy, contact, plan, secrets = arrival
    for passed in home.checkpoint.passed_over:
        contact.view.note(f"{passed.checkpoint} passed over: {passed.wrong}")
    build = build_settings.read(contact.host, os.environ)
    with open_for_plan(contact.client, contact.host, plan, contact.facts, build) as runtime:
        started = begin(contact, runtime, plan, secrets, UploadStage("ship", fill), run)
    with contextlib.suppress(OSError):  # the record of the upload is needed only for `recover --abandon`
        upload_record.copy(local_copy, started.local_copy)
    return started


def send_checkpoint(
    new: HostClient, local_copy: LocalCopy, home: LocalCheckpoint, child: LocalCopy, stage: Stage
) -> int:
    """Send the files of the local checkpoint that its manifest lists; return the bytes sent."""
    places = {
        content.sha256: (content.size, home.folder / content.path.split("/", 2)[2])
        for content in home.checkpoint.contents
    }
    missing = new.preparation.offer_checkpoint(child.run, local_copy.run, home.checkpoint)
    check_offered(new, missing, places)
    files = [
        SizedFile(places[sha256][1].name, local_copy.files.at(places[sha256][1]), places[sha256][0])
        for sha256 in missing
    ]
    new.preparation.ship_checkpoint(child.run, missing, _writer(files, stage))
    return sum(file.size for file in files)


def send_files(
    new: HostClient, child: LocalCopy, missing: Sequence[str], files: Sequence[SizedFile], stage: Stage
) -> None:
    """Send the missing files of an offered tree, in their order.

    Raises RunError if the host cannot keep them.
    """
    if new.preparation.ship(child.run, missing, _writer(files, stage)):
        raise RunError(f"{new.host} cannot store the files that it receives; check its disk")


def check_offered(new: HostClient, missing: Sequence[str], offered: Mapping[str, object]) -> None:
    """Raise RunError if a host requests contents that it was not offered."""
    if not set(missing) <= offered.keys():
        raise RunError(f"{new.host} asks for a file that was not offered")


def _writer(files: Sequence[SizedFile], stage: Stage) -> Callable[[IO[bytes]], None]:
    meter = Meter(sum(file.size for file in files), stage.moved)
    return functools.partial(write_files, files, meter=meter)
