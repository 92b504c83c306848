"""A launch: resolve, connect, probe, plan, pass the gate, sweep, ship, start. Each stage is shown with its time."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends.kinds import RUNTIMES
from launcher.backends.registry import backend_of
from launcher.backends.runtimes import Runtime, open_for_plan
from launcher.backends.runtimes import load as load_runtime
from launcher.base.delayed_interrupts import HeldInterrupts, Interrupts
from launcher.config import build_settings, command_check, job_check, resolve, secret_values
from launcher.config.resolved import Resolved
from launcher.copy import index
from launcher.copy.local_copy import LocalCopy
from launcher.copy.request import Request, remember
from launcher.copy.run_id import new_run_id
from launcher.copy.runs_folder import runs_folder
from launcher.errors import (
    AgentError,
    CardBusyError,
    ConnectionLostError,
    EngineError,
    HostError,
    RefusedError,
    ServiceError,
    SubmitLimitError,
    UsageError,
)
from launcher.runs.follow.view import Stage, View
from launcher.runs.launch import cards, sweeping
from launcher.runs.launch.adapting import script_findings, suggestion
from launcher.runs.launch.hook_note import hook_note
from launcher.runs.launch.preflight import (
    ConnectedHost,
    look_at_cards,
    pass_gate,
    pass_gate_when_free,
    settle,
)
from launcher.runs.launch.resolved_request import AUTO, secrets_for, there, understand
from launcher.runs.launch.shipping import Shipment, ship
from launcher.runs.launch.verifiable import unverifiable
from launcher.runs.launch.wanted_machine import Wanted
from launcher.runs.rented.acquire import acquire
from launcher.runs.run_client import Opening, connect
from launcher.transport.client.host_client import HostClient
from launcher.upload import excluded_files, upload_record
from launcher.upload.loading import Load, load
from launcher.upload.upload_history import UploadHistory
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Finding, Plan
from launcher.values.profile import Profile

if TYPE_CHECKING:
    from launcher.rental.lease.rental_lease import Lease
    from launcher.upload.frozen_code import FrozenCode

ID_TRIES = 5
SUBMIT_AGAIN_S = (5.0, 10.0, 20.0, 40.0, 60.0)
"""How long to wait before a run is submitted again to a scheduler that accepts no more jobs, in seconds."""
UNSETTLED = "unsettled"
"""The agent's error code for a run whose submission to the host's scheduler is unconfirmed."""


class Started(NamedTuple):
    """A run that has begun, and its open host client, which `follow` takes over."""

    host: Host
    local_copy: LocalCopy
    client: HostClient
    interrupts: Interrupts
    """Holds Ctrl-C and SIGTERM back until the caller releases them: from here on they do not end the run."""
    lease: Lease | None = None
    """The lease of the machine, if it is rented: the caller terminates the rental, or hands it over."""
    job_id: str | None = None
    """The id of the run's job in Slurm, on a cluster."""


def launch(
    request: Request,
    view: View,
    run_id: str | None = None,
    *,
    opening: Opening | None = None,
    hold: Callable[[], Interrupts] = HeldInterrupts,
    code: FrozenCode | None = None,
) -> Started:
    """Start a run, under a new id unless one is given.

    `opening` opens its host client, and `hold` holds interrupts back: NoInterrupts in a thread. `code` is the
    frozen code of its batch. Raises RefusedError from the gate, before anything was sent. If this raises or
    is interrupted, no data is left on the host: its agent removes prepared data when the connection ends. The
    start itself is not interrupted: Ctrl-C waits for it. If the link breaks during the start, the run may
    have begun, as the error says.
    """
    resolved = understand(request)
    host, task = resolved.host, resolved.task
    if request.verifies:
        backend_of(host).check_has(host, "verify")
    planning = backend_of(host).planning
    settle(planning.refusals(task.job, host), view)
    secrets = secrets_for(resolved)
    if task.said:
        view.note(task.said)
    settle([*job_check.findings(task), *secret_values.findings(resolved.values)], view)
    if code is None:  # for a batch, equal runs are repetitions, and its check has a note
        settle(command_check.ignored_settings(task), view)
    settle(resolved.machine.notes if resolved.machine is not None else (), view)
    settle(_not_said_before(planning.task_findings(task, host), task.job.name, host.name), view)
    runs_folder()  # raises if it cannot be made, before the host is contacted
    loaded = _load(task, request.env_files, view, code)
    resolved = resolved._replace(commit=loaded.tree.commit)
    before = UploadHistory(task.code, host)
    if not request.is_sure:
        _ask(before.question(loaded), view)
    ready = _Ready(request, secrets, loaded, before, opening, hold, code.batch if code is not None else None)
    with acquire(wanted_of(resolved, request, run_id), view) as machine:
        profiles = resolved.profiles if machine.profile is None else (machine.profile,)
        there = resolved._replace(host=machine.host, profiles=profiles)
        started = _launch_on(there, ready, view, machine.run, machine.plan)
    return started._replace(lease=machine.lease)


def _not_said_before(findings: Iterable[Finding], job: str, host: str) -> Iterator[Finding]:
    """Yield findings. If the job had a run on this host, omit the note that its script cannot continue."""
    for one in findings:
        if one.code != "cannot-go-on" or not index.has_run_of(job, host):
            yield one


def wanted_of(resolved: Resolved, request: Request, run_id: str | None = None) -> Wanted:
    """Return a launch's requirements for a machine."""

    def plan_for(profile: Profile, facts: Facts) -> Plan:
        from launcher.runs.launch.planned import plan_of  # loads slowly, so not before a host is contacted

        return plan_of(profile, resolved, facts)

    return Wanted(
        resolved.host,
        resolved.profiles,
        resolved.gpus,
        resolved.job,
        plan_for,
        is_sure=request.is_sure,
        wait_s=request.wait_s,
        run=run_id,
        most_cents=request.most_cents,
    )


class _Ready(NamedTuple):
    """The values that a launch prepares before it connects."""

    request: Request
    secrets: Mapping[str, str]
    loaded: Load
    before: UploadHistory
    opening: Opening | None
    hold: Callable[[], Interrupts]
    batch: str | None


def _launch_on(
    resolved: Resolved, ready: _Ready, view: View, run_id: str | None = None, shown: Plan | None = None
) -> Started:
    """Start a run on the machine of a request, under a new id unless one is given.

    A plan that was already shown is not shown again.
    """
    host, (request, secrets, loaded, before, opening, hold, batch) = resolved.host, ready
    with view.stage("connect") as stage:
        client = connect(host, opening)
        stage.text = client.about
    try:
        facts, profile = _look(client, resolved, view)
        from launcher.planning.model_size_findings import unknown_model
        from launcher.runs.launch.planned import plan_of

        plan = plan_of(profile, resolved, facts)
        if request.verifies:
            from launcher.planning.verification_plan import verification  # few launches verify

            settle(unverifiable(plan), view)
            plan = verification(plan, resolved.job)
        if shown is None or plan.digest != shown.digest:
            view.head(plan)
        settle([*suggestion(plan), *unknown_model(plan)], view)
        settle(
            command_check.without_effect(plan, resolved.asked, resolved.job, rehearses=request.rehearses),
            view,
        )
        settle(command_check.not_installed(plan, facts, resolved.job, resolved.task.code), view)
        settle(script_findings(plan, resolved.task), view)
        deadline = time.monotonic() + request.wait_s
        contact = ConnectedHost(
            host, client, resolved.job, facts, view, resolved.gpus, deadline, shown is not None, batch
        )
        contact = pass_gate_when_free(contact, plan)
        if (note := backend_of(host).running.first_note()) is not None:
            view.note(f"{host.name}: {note}")
        build = build_settings.read(host, os.environ)
        with open_for_plan(client, host, plan, contact.facts, build) as runtime:
            shipments: list[Shipment] = []
            fill = functools.partial(_ship, client, loaded, before, shipments)
            started = begin(contact, runtime, plan, secrets, UploadStage("ship", fill), run_id, hold)
        # These records serve only `rerun`, `recover --abandon` and the list of excluded files: a full disk is
        # no error.
        with contextlib.suppress(OSError):
            excluded_files.remember(started.local_copy.files, loaded.selection)
            remember(started.local_copy, request)
            for shipment in shipments:
                upload_record.write(started.local_copy, upload_record.sent(loaded.tree, shipment.manifest))
        return started
    except BaseException:
        client.close()
        raise


def _ship(
    client: HostClient,
    loaded: Load,
    before: UploadHistory,
    shipments: list[Shipment],
    local_copy: LocalCopy,
    stage: Stage,
) -> str:
    """Send a load for a run; append the shipment to the list."""
    shipments.append(ship(client, loaded, before, local_copy, stage))
    return shipments[-1].words


def _load(task: resolve.Task, env_files: Sequence[str], view: View, code: FrozenCode | None = None) -> Load:
    """Collect the files to send, and show the excluded ones.

    Raises RefusedError for a folder or script that cannot be sent.
    """
    with view.stage("files") as stage:
        stage.text = None  # the stage `ship` shows its result
        loaded = load(task, env_files)
        if code is not None and not loaded.selection.findings:
            loaded = code.of_batch(loaded, task.file)
    settle([*loaded.selection.findings, *command_check.findings(task.job, loaded.selection)], view)
    view.selection(loaded.selection)
    return loaded


def _ask(question: Finding | None, view: View) -> None:
    """Ask whether a large upload is intended. Raises RefusedError if not, or without a terminal."""
    if question is None:
        return
    answer = view.agrees(question.message)
    if answer is None:
        raise RefusedError(f"{cards.REFUSED}{question.message}\n  {question.mend}")
    if not answer:
        raise RefusedError(f"not sent: you answered no\n  {question.mend}")


class UploadStage(NamedTuple):
    """An upload stage: `fill` puts a run's code and data in place, shows its progress, and returns a summary."""

    stage: str
    fill: Callable[[LocalCopy, Stage], str]


def begin(
    contact: ConnectedHost,
    runtime: Runtime,
    plan: Plan,
    secrets: Mapping[str, str],
    filling: UploadStage,
    run_id: str | None = None,
    hold: Callable[[], Interrupts] = HeldInterrupts,
) -> Started:
    """Sweep a host, create a run with leased cards, waiting for them if necessary, fill it, and start it.

    The run gets a new id, unless one is given; raises AgentError `run-exists` if that exists on the host. If
    this raises, the caller closes the host client, which removes prepared data. `hold` holds interrupts back
    from the start on; only the main thread can.
    """
    view = contact.view
    if plan.verification is None and (note := hook_note(plan)):
        view.note(note)
    look = look_at_cards(contact, plan)
    _sweep(runtime, view)
    wait_s = contact.deadline - time.monotonic()
    create = functools.partial(_create, runtime, plan, look, run_id, queues=wait_s > 0)
    run, gpus = cards.waiting_for(create, wait_s, view)
    local_copy = LocalCopy(run, runs_folder())
    with view.stage(filling.stage) as stage:
        stage.text = filling.fill(local_copy, stage)
    if needed := runtime.needs(plan):
        with view.stage(needed) as stage:
            stage.text = runtime.provide(plan, stage.progress)
    with view.stage("start") as stage:
        if secrets:
            runtime.entrust(local_copy.run, secrets)
        interrupts, job_id = _start_when_accepted(contact, runtime, plan, local_copy, hold, stage)
        where = [look().title(gpus)] if gpus else []
        batch = [plan.split.title] if plan.hands_out("split") else []
        stage.text = ", ".join([f"run {local_copy.run}", runtime.start_words(job_id), *where, *batch])
    return Started(contact.host, local_copy, runtime.client, interrupts, job_id=job_id)


def _start_when_accepted(
    contact: ConnectedHost,
    runtime: Runtime,
    plan: Plan,
    local_copy: LocalCopy,
    hold: Callable[[], Interrupts],
    stage: Stage,
) -> tuple[Interrupts, str | None]:
    """Start a run, and try again while the host's scheduler accepts no more jobs of the user.

    Return the held interrupts and the id of the run's job on a cluster. A batch does not wait here: raises
    SubmitLimitError.
    """
    waits = itertools.chain(SUBMIT_AGAIN_S, itertools.repeat(SUBMIT_AGAIN_S[-1]))
    while True:
        # On a failure from here on, a rental ends only if its run provably never began.
        interrupts = hold()
        try:
            local_copy.bind(contact.host, runtime.client.root_id, plan, contact.batch)
            return interrupts, _start(runtime, local_copy)
        except SubmitLimitError as error:
            interrupts.release()
            if contact.batch is not None:
                raise
            wait_s = next(waits)
            if wait_s == SUBMIT_AGAIN_S[0]:
                contact.view.note(f"{error}\n  it is submitted again until Slurm takes it; Ctrl-C gives up")
            stage.progress(f"it is submitted again in {wait_s:.0f} s")
            time.sleep(wait_s)
        except BaseException:
            interrupts.release()
            raise


def build_image(request: Request, view: View) -> None:
    """Build or pull the image of a job on a host, ahead of launches. Raises RefusedError."""
    resolved = understand(request)
    host = _with_images(resolved.host)
    resolved = resolved._replace(host=host)
    build = build_settings.read(host, os.environ)
    with contextlib.ExitStack() as stack:
        with view.stage("connect") as stage:
            client = stack.enter_context(connect(host))
            stage.text = client.about
        facts, profile = _look(client, resolved, view)
        from launcher.runs.launch.planned import plan_of

        plan = plan_of(profile, resolved, facts)
        with contextlib.suppress(CardBusyError):  # a build needs no card
            pass_gate(ConnectedHost(host, client, resolved.job, facts, view), plan)
        runtime = stack.enter_context(open_for_plan(client, host, plan, facts, build))
        with view.stage("image") as stage:
            stage.text = runtime.provide(plan, stage.progress)


def _with_images(host: Host) -> Host:
    """Return a host with a runtime that uses images. Raises UsageError if its configured runtime does not."""
    backend_of(host).check_has(host, "image")
    if host.runtime == AUTO:
        name = next(name for name in RUNTIMES if load_runtime(name).has_images)
        return host.model_copy(update={"runtime": name})
    if not load_runtime(host.runtime).has_images:
        raise UsageError(
            f'{host.name}: runtime = "{host.runtime}" in launch.toml: nothing runs in an image there'
        )
    return host


def _look(client: HostClient, resolved: Resolved, view: View) -> tuple[Facts, Profile]:
    """Probe a host; return its facts and the resulting profile. Raises HostError or UnknownNameError."""
    with view.stage("probe") as stage:
        probing = backend_of(resolved.host).probing
        facts = probing.probe(client, resolved.host, resolved.job, resolved.machine)
        facts, profile, why = there(resolved, facts)
        words = f"{'' if resolved.machine is None else 'expected: '}{probing.describe(facts)}"
        stage.text = "; ".join(filter(None, (words, why)))
    return facts, profile


def _start(runtime: Runtime, local_copy: LocalCopy) -> str | None:
    """Start the run; return the id of its job on a cluster.

    If the start fails and the host removes the run, the local copy is removed too; otherwise the run may have
    begun.
    Raises RefusedError, with the scheduler's message, for a job that the host's scheduler rejects.
    """
    try:
        return runtime.start(local_copy.run)
    except ConnectionLostError as error:
        words = f"{error}\n  the run may have begun   launch attach {local_copy.short}"
        raise ConnectionLostError(error.host, words) from error
    except (AgentError, EngineError, ServiceError) as error:
        is_taken = False
        with contextlib.suppress(HostError):
            is_taken = runtime.client.preparation.take_back(local_copy.run)
        if is_taken:
            with contextlib.suppress(OSError):
                local_copy.remove()
            if isinstance(error, AgentError) and runtime.is_limit(error):
                raise SubmitLimitError(str(error)) from error
            if isinstance(error, AgentError) and (look := runtime.after_refusal(error)) is not None:
                raise RefusedError(f"{error}\n  {look}") from error
            raise
        words = f"{error}\n  the run may have begun   launch attach {local_copy.short}"
        if isinstance(error, ServiceError):
            raise type(error)(error.host, error.reason, words, error.retry_s) from error
        if isinstance(error, EngineError):
            raise EngineError(error.host, words) from error
        if error.code == UNSETTLED:
            words = (
                f"{error}\n  look   launch ps     end it, if it has begun   launch stop {local_copy.short}"
            )
        raise AgentError(error.host, error.code, words, error.values) from error


def _sweep(runtime: Runtime, view: View) -> None:
    """Remove leftovers of dead runs on the host, which may hold the card."""
    with view.stage("sweep") as stage:
        items = sweeping.sweep(runtime.client, [runtime], dry_run=False, kept_s=sweeping.KEPT_S)
        stage.text = sweeping.summary(items)
    for item in items:
        if item.did == "left":
            view.note(f"{item.title}: left alone: {item.why}")


def _create(
    runtime: Runtime,
    plan: Plan,
    look: Callable[[], cards.CardChoice],
    run_id: str | None,
    *,
    queues: bool,
) -> tuple[str, tuple[str, ...]]:
    """Create the run on the host under its id, or a free one; return the id and its cards."""
    choice = look()
    for tries_left in reversed(range(ID_TRIES if run_id is None else 1)):
        run = run_id or new_run_id(plan.job)
        try:
            gpus = runtime.create(run, plan, choice.gpus, choice.needed, any_of=choice.any_of, queues=queues)
        except AgentError as error:
            if error.code == cards.LEASED:
                raise cards.leased(error, plan, choice) from error
            if error.code != "run-exists" or not tries_left:
                raise
        else:
            return run, gpus
    raise AssertionError("unreachable")
