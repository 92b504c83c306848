"""One launch: resolve, connect, probe, plan, gate, sweep, ship, start. Each stage is shown with its time."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from launcher.errors import (
    AgentError,
    BadFileError,
    CardBusyError,
    ConnectionLostError,
    EngineError,
    HostError,
    LaunchError,
    RefusedError,
    RunError,
    UsageError,
)
from launcher.hosts import Agent, connect
from launcher.hosts.agent import printable
from launcher.planning import (
    Ladder,
    LadderInputs,
    PrecisionRequest,
    best_card,
    card_choice_reason,
    check,
    distribution,
    environment,
    ladder,
    ladder_inputs,
    match_profile,
    requested_gpus,
    site,
    source,
)
from launcher.planning import plan as make_plan
from launcher.planning import runtime as choose_runtime
from launcher.runs import build_settings, cards, models, resolve, secret_values, sweeping, tree
from launcher.runs.digests import Digests
from launcher.runs.mirror import Mirror, new_run_id, runs_folder
from launcher.runs.view import View
from launcher.runtimes import Runtime, open_runtime
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.model import CONFIG_KEYS, Model
from launcher.values.parsing import build
from launcher.values.plan import Finding, Plan
from launcher.values.precision import Platform
from launcher.values.profile import Profile

AUTO: Literal["auto"] = "auto"
NO_JOB = Job(name="none", command=("true",))
"""One that needs nothing: whoever only wants a host's cards need not wait for its interpreters."""
PROBE_VERSION = 1
PROBE_DEADLINE_S = 20.0
MOST_HOSTS_AT_ONCE = 32
ID_TRIES = 5
SHIP_TRIES = 3
PLACING_S = 600.0
LOOK_AGAIN_S = 30.0


class Request(NamedTuple):
    """What a command line asks for; None where it is silent."""

    host: str | None = None
    profile: str | None = None
    job: str | None = None
    runtime: str | None = None
    precision: PrecisionRequest = "auto"
    settings: Sequence[str] = ()
    name: str | None = None
    words: Sequence[str] = ()
    secrets: Sequence[str] = ()
    rehearses: bool = False
    gpus: str | None = None
    wait_s: float = 0.0


class Resolved(NamedTuple):
    """The request as values. The probe decides between several `profiles`, or between all that are known if none is named.

    `model` is what is known here of the job's; `rehearsed_on` the CPU that a card's plan is tried on.
    """

    host: Host
    profiles: tuple[Profile, ...]
    task: resolve.Task
    asked: PrecisionRequest
    model: Model | None
    rehearsed_on: Profile | None
    gpus: str | None

    @property
    def job(self) -> Job:
        """The job."""
        return self.task.job


def understand(request: Request) -> Resolved:
    """Turn names and files into values; nothing is sent. Raises UsageError and its kin."""
    host = resolve.host(request.host)
    if request.runtime is not None:
        host = Host.model_validate({**host.model_dump(), "runtime": request.runtime})
    name = request.profile or host.profile or resolve.project().profile or AUTO
    profiles = () if name == AUTO else resolve.profiles_meant(name)
    task = resolve.task(request.job, request.words, request.settings, request.name)
    task = task._replace(job=secret_values.with_names(task.job, request.secrets))
    if request.rehearses and not profiles:
        raise UsageError(
            "--rehearse tries a card's plan on a CPU: name the card   --profile titan_rtx --rehearse"
        )
    rehearsed_on = resolve.profile("cpu") if request.rehearses else None
    requested_gpus(request.gpus, 1)
    model = models.read_here(task)
    return Resolved(host, profiles, task, request.precision, model, rehearsed_on, request.gpus)


def preview(request: Request, facts: Facts | None = None) -> tuple[Plan, tuple[Finding, ...]]:
    """Return the plan and what the gate would say; nothing is refused, nothing is left on the host.

    With the facts of an earlier probe no connection is made. Raises HostError only where the plan itself hangs on the
    probe: no profile is named, or a name that means several.
    """
    wanted = understand(request)
    host, profiles = wanted.host, wanted.profiles
    unreached: tuple[Finding, ...] = ()
    if facts is None:
        try:
            with connect(host) as agent:
                facts = probe(agent, host, wanted.job)
        except HostError as error:
            if not profiles:
                raise
            if len(profiles) > 1:
                names = " or ".join(one.name for one in profiles)
                words = f"{error}\n  without its probe the profile is not clear: name {names}"
                raise HostError(error.host, words) from error
            unreached = (Finding(level="note", code="not-reached", message=f"the gate saw no host: {error}"),)
    profile = choose_profile(profiles, facts)[0] if facts else profiles[0]
    try:
        plan = _plan(profile, wanted, facts)
        refused: tuple[Finding, ...] = ()
    except RefusedError as error:
        plan = _plan(profile, _with_nothing_asked(wanted), facts)
        refused = (Finding(level="refuse", code="precision-excluded", message=str(error)),)
    asked = cards.findings(wanted.gpus, plan, facts)
    return plan, (*refused, *unreached, *asked, *check(plan, facts, host, resolve.wheels()))


def explain(request: Request, facts: Facts | None = None) -> tuple[LadderInputs, Ladder]:
    """Return what a ladder is made for, and the ladder. The host is asked only where no profile, or several, are named.

    Raises RefusedError when the precision that is asked for is excluded.
    """
    wanted = understand(request)
    if facts is None and len(wanted.profiles) != 1:
        with connect(wanted.host) as agent:
            facts = probe(agent, wanted.host, wanted.job)
    profile = choose_profile(wanted.profiles, facts)[0] if facts else wanted.profiles[0]
    case = ladder_inputs(profile, wanted.job, *_known(wanted, facts))
    return case, ladder(case, wanted.asked)


def _with_nothing_asked(wanted: Resolved) -> Resolved:
    """Return a request that leaves the precision to us, for a preview of what was refused."""
    job = wanted.job.model_copy(update={"attention": "sdpa", "compile": False})
    return wanted._replace(asked=AUTO, task=wanted.task._replace(job=job))


def choose_profile(profiles: Sequence[Profile], facts: Facts) -> tuple[Profile, str]:
    """Return the profile that the probe decides on, and why, where there was a choice between cards.

    Of those that were named; where none of them is there, the first, which the gate then refuses. Of all, where none
    was named. Raises UnknownNameError for cards that no profile names.
    """
    if len(profiles) == 1:
        return profiles[0], ""
    best = best_card(facts, profiles)
    if profiles and best is None:
        return profiles[0], ""
    profile = best[0] if best else match_profile(facts, resolve.profiles().values())
    return profile, card_choice_reason(profile, facts)


class Started(NamedTuple):
    """A run that has begun, and the open agent for `follow` to take over."""

    host: Host
    mirror: Mirror
    agent: Agent
    interrupted_by: int | None
    """The signal of Ctrl-C or SIGTERM, if one came in the moment of its start: whoever asked wants to leave."""


def launch(request: Request, view: View) -> Started:
    """Start a run.

    Raises RefusedError by the gate, before anything was sent. When it raises, or is interrupted, nothing is left on
    the host: what its agent had prepared for us it removes when we hang up. The start itself is not torn: Ctrl-C waits
    for it, and a link that breaks there leaves a run that may have begun, which the error says.
    """
    wanted = understand(request)
    host, task = wanted.host, wanted.task
    secrets = secret_values.values(task.job)
    if task.said:
        view.note(task.said)
    runs_folder()  # where it cannot be, that is said before anything is asked of the host
    with view.stage("connect") as stage:
        agent = connect(host)
        stage.text = agent.about
    try:
        facts, profile = _look(agent, wanted, view)
        plan = _plan(profile, wanted, facts)
        view.head(plan)
        deadline = time.monotonic() + request.wait_s
        facts = pass_gate_when_free(agent, plan, facts, host, wanted.job, view, deadline, wanted.gpus)
        look = look_at_cards(agent, plan, facts, host, task.job, wanted.gpus)
        settings = build_settings.read(host, os.environ)
        with open_runtime(agent, host, plan, facts, settings) as runtime:
            fill = functools.partial(_ship, agent, plan=plan, task=task, view=view)
            return begin(runtime, host, plan, look, secrets, view, "ship", fill, deadline)
    except BaseException:
        agent.close()
        raise


def begin(
    runtime: Runtime,
    host: Host,
    plan: Plan,
    look: Callable[[], cards.Wanted],
    secrets: Mapping[str, str],
    view: View,
    stage_name: str,
    fill: Callable[[Mirror], str],
    deadline: float,
) -> Started:
    """Sweep a host, make a run there with cards of its own, waited for if need be, give it what it needs, and start it.

    `look` says which cards it may have; the wait ends at `deadline`, by the monotonic clock. `fill` puts code and data in place, which is shown as a stage, and says what it did. Whoever calls hangs up when
    this raises: what was prepared is cleared away then.
    """
    _sweep(runtime, view)
    wait_s = deadline - time.monotonic()
    create = functools.partial(_create, runtime, plan, look, queues=wait_s > 0)
    run, gpus = cards.waiting_for(create, wait_s, view)
    mirror = Mirror(run, runs_folder())
    with view.stage(stage_name) as stage:
        stage.text = fill(mirror)
    if plan.image is not None or plan.environment is not None:
        with view.stage("image" if plan.image is not None else "environment") as stage:
            stage.text = runtime.provide(plan, stage.progress)
    with view.stage("start") as stage:
        if secrets:
            runtime.entrust(mirror.run, secrets)
        mirror.bind(host)
        with _interrupt_held() as interrupts:
            _start(runtime, mirror)
        where = f"{look().title(gpus)}, " if gpus else ""
        stage.text = f"run {mirror.run}, attempt 1, {where}{plan.split.title}"
    return Started(host, mirror, runtime.agent, interrupted_by=next(iter(interrupts), None))


def build_image(request: Request, view: View) -> None:
    """Build, or pull, the image of a job on a host, so that no launch has to. Raises RefusedError."""
    wanted = understand(request)
    host = wanted.host
    if host.runtime == "native":
        raise UsageError(f'{host.name}: runtime = "native" in launch.toml: nothing runs in an image there')
    host = Host.model_validate({**host.model_dump(), "runtime": "docker"})
    wanted = wanted._replace(host=host)
    settings = build_settings.read(host, os.environ)
    with contextlib.ExitStack() as stack:
        with view.stage("connect") as stage:
            agent = stack.enter_context(connect(host))
            stage.text = agent.about
        facts, profile = _look(agent, wanted, view)
        plan = _plan(profile, wanted, facts)
        with contextlib.suppress(CardBusyError):  # a build needs none
            pass_gate(plan, facts, host, view)
        runtime = stack.enter_context(open_runtime(agent, host, plan, facts, settings))
        with view.stage("image") as stage:
            stage.text = runtime.provide(plan, stage.progress)


def _look(agent: Agent, wanted: Resolved, view: View) -> tuple[Facts, Profile]:
    """Probe a host; return its facts and the profile that they decide on. Raises HostError or UnknownNameError."""
    with view.stage("probe") as stage:
        facts = probe(agent, wanted.host, wanted.job)
        profile, why = choose_profile(wanted.profiles, facts)
        stage.text = "; ".join(filter(None, (describe(facts), why)))
    return facts, profile


def _plan(profile: Profile, wanted: Resolved, facts: Facts | None) -> Plan:
    """Return the plan; how it runs there hangs on the facts, native where there are none. Raises RefusedError."""
    profile = cards.profile_for(wanted.gpus, profile)
    on = wanted.rehearsed_on or profile
    how = choose_runtime(on, wanted.host, wanted.job, facts) if facts else "native"
    sources = resolve.image_sources() if how == "docker" else None
    made = None
    if facts is not None and how == "native" and wanted.job.requirements:
        made = environment(on, wanted.job, wanted.host, facts, resolve.wheels())
    model, platform = _known(wanted, facts)
    if made is not None and made.torch is not None:
        platform = platform.model_copy(update={"torch": made.torch.partition("+")[0]})
    return make_plan(
        profile,
        wanted.host,
        wanted.job,
        wanted.asked,
        how,
        sources,
        site=site(facts),
        environment=made,
        model=model,
        platform=platform,
        rehearsed_on=wanted.rehearsed_on,
    )


def _known(wanted: Resolved, facts: Facts | None) -> tuple[Model | None, Platform]:
    """Return what is known of the job's model, and of what its precision hangs on."""
    return (wanted.model or facts.model, facts.for_precision) if facts else (wanted.model, Platform())


def _start(runtime: Runtime, mirror: Mirror) -> None:
    """Start the run. One that could not begin leaves no mirror, if its host clears it away; else it may have begun."""
    try:
        runtime.start(mirror.run)
    except ConnectionLostError as error:
        words = f"{error}\n  the run may have begun   launch attach {mirror.short}"
        raise ConnectionLostError(error.host, words) from error
    except (AgentError, EngineError):
        with contextlib.suppress(HostError):
            if runtime.agent.call("take_back", run=mirror.run).values.get("taken") is True:
                shutil.rmtree(mirror.folder, ignore_errors=True)
        raise


@contextlib.contextmanager
def _interrupt_held() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM for the length of a step that must not be torn."""
    got: list[int] = []
    held = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _frame: got.append(number)) for number in held]
    try:
        yield got
    finally:
        for number, handler in zip(held, before, strict=True):
            signal.signal(number, handler)


def probe(agent: Agent, host: Host, job: Job | None = None) -> Facts:
    """Ask a host for its facts, and for the packages and the model of a job; without one, for its other interpreters.

    Raises HostError, also for an answer that holds no facts.
    """
    packages = None if job is None else [distribution(one) for one in job.requirements]
    model = source(job.model).model_dump() if job is not None and job.model is not None else None
    told = agent.call(
        "probe",
        env=host.environment,
        packages=packages,
        engine=host.engine,
        model=model,
        model_keys=CONFIG_KEYS,
    ).values
    try:
        return build(Facts, told, file=f"{host.name}'s probe")
    except (BadFileError, RecursionError) as error:
        raise HostError(host.name, printable(str(error))) from error


def saved_probe(path: Path) -> Facts:
    """Read what `launch probe --json` printed. Raises BadFileError that names file, key and value."""
    mend = "make one   launch probe --json > FILE"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadFileError(f"{path}: is not JSON: {error}\n  {mend}") from error
    if not isinstance(told, dict):
        raise BadFileError(f"{path}: is no probe\n  {mend}")
    if told.get("version") != PROBE_VERSION:
        shown = json.dumps(told.get("version"))[:60]
        raise BadFileError(f"{path}: version = {shown}: expected {PROBE_VERSION}\n  {mend}")
    return build(Facts, told, file=str(path))


class Probed(NamedTuple):
    """What one of several hosts told: its facts and the profile of its best card, or why not."""

    host: Host
    facts: Facts | None = None
    profile: str | None = None
    problem: str | None = None


def probe_all(hosts: Sequence[Host], deadline_s: float = PROBE_DEADLINE_S) -> Iterator[Probed]:
    """Probe hosts, many at once; yield each as it answers, at the latest `deadline_s` seconds after it was asked.

    A host that hangs is left behind with its thread, and holds up nobody's place.
    """
    answers: queue.SimpleQueue[Probed] = queue.SimpleQueue()
    waiting = list(reversed(hosts))
    asked: dict[str, tuple[float, Host]] = {}
    while waiting or asked:
        while waiting and len(asked) < MOST_HOSTS_AT_ONCE:
            host = waiting.pop()
            asked[host.name] = (time.monotonic() + deadline_s, host)
            threading.Thread(
                target=lambda one: answers.put(_probe_one(one)), args=(host,), daemon=True
            ).start()
        next_deadline, slowest = min(asked.values(), key=lambda pair: pair[0])
        try:
            found = answers.get(timeout=max(0.0, next_deadline - time.monotonic()))
        except queue.Empty:
            found = Probed(slowest, problem=f"{slowest.name}: no answer within {deadline_s:g} s")
        if asked.pop(found.host.name, None):  # else it answers after it was given up
            yield found


def _probe_one(host: Host) -> Probed:
    facts: Facts | None = None
    try:
        with connect(host) as agent:
            facts = probe(agent, host, NO_JOB)
        return Probed(host, facts, match_profile(facts, resolve.profiles().values()).name)
    except LaunchError as error:
        return Probed(host, facts, problem=str(error).splitlines()[0])


def describe(facts: Facts) -> str:
    """Return a host's facts in one line."""
    if facts.gpus:
        card = f"{facts.cards_with_held}, driver {facts.gpus[0].driver}"
    else:
        card = "Apple GPU" if facts.has_apple_gpu else f"no GPU, {facts.cpus} CPUs"
    python = (
        f"Python {facts.interpreter.version}"
        if facts.interpreter and facts.interpreter.version
        else "no Python"
    )
    engines = [f"{one.name.title()} {one.version}" for one in facts.engines if one.version and not one.error]
    return ", ".join([card, python, *engines, room_text(facts)])


def room_text(facts: Facts) -> str:
    """Return how much may be written below the root, as a person reads it."""
    if facts.room_gb is None:
        return "free space not told"
    has_quota = facts.room_gb == facts.file_system.quota_free_gb
    return f"{facts.room_gb:,.0f} GB free{' by quota' if has_quota else ''}"


def pass_gate_when_free(
    agent: Agent,
    plan: Plan,
    facts: Facts,
    host: Host,
    job: Job,
    view: View,
    deadline: float,
    gpus: str | None = None,
) -> Facts:
    """Pass the gate; while strangers hold its cards look again, up to `deadline`. Return the facts that it passed with.

    Raises RefusedError.
    """
    looked = [facts]

    def look() -> Facts:
        found = looked.pop() if looked else probe(agent, host, job)
        pass_gate(plan, found, host, view, gpus)
        return found

    return cards.waiting_for(look, deadline - time.monotonic(), view)


def look_at_cards(
    agent: Agent, plan: Plan, facts: Facts, host: Host, job: Job, gpus: str | None = None
) -> Callable[[], cards.Wanted]:
    """Return what says which cards a plan may have: by these facts, and by those of a new probe when they are old.

    While strangers hold all of them what was seen before holds on.
    """
    looked_at, meant = time.monotonic(), cards.wanted(gpus, plan, facts)

    def look() -> cards.Wanted:
        nonlocal looked_at, meant
        if meant.gpus and time.monotonic() - looked_at > LOOK_AGAIN_S:
            found = cards.wanted(gpus, plan, probe(agent, host, job))
            looked_at, meant = time.monotonic(), found if len(found.gpus) >= found.needed > 0 else meant
        return meant

    return look


def pass_gate(plan: Plan, facts: Facts, host: Host, view: View, gpus: str | None = None) -> None:
    """Show what the gate notes, of the cards that were asked for too.

    Raises RefusedError for what it refuses, CardBusyError where that may pass by itself.
    """
    findings = [*cards.findings(gpus, plan, facts), *check(plan, facts, host, resolve.wheels())]
    refusals = [finding for finding in findings if finding.level == "refuse"]
    if busy := cards.refusal(refusals, plan, facts):
        raise busy
    for finding in findings:
        if finding.level == "note":
            view.finding(finding)
    if refusals:
        lines = [f"{one.message}\n  {one.mend}" if one.mend else one.message for one in refusals]
        raise RefusedError(cards.REFUSED + "\n".join(lines))


def _sweep(runtime: Runtime, view: View) -> None:
    """End what dead runs have left on the host: it may hold the card."""
    with view.stage("sweep") as stage:
        items = sweeping.sweep(runtime.agent, runtime.engine, dry_run=False, kept_s=sweeping.KEPT_S)
        stage.text = sweeping.summary(items)
    for item in items:
        if item.did == "left":
            view.note(f"{item.title}: left alone: {item.why}")


def _create(
    runtime: Runtime, plan: Plan, look: Callable[[], cards.Wanted], *, queues: bool
) -> tuple[str, tuple[str, ...]]:
    """Make the run on the host under an id that is free there; return the id, and the cards that it got."""
    meant = look()
    for tries_left in reversed(range(ID_TRIES)):
        run = new_run_id(plan.job)
        try:
            gpus = runtime.create(run, plan, meant.gpus, meant.needed, any_of=meant.any_of, queues=queues)
        except AgentError as error:
            if error.code == cards.LEASED:
                raise cards.leased(error, plan, meant) from error
            if error.code != "run-exists" or not tries_left:
                raise
        else:
            return run, gpus
    raise AssertionError("unreachable")


def _ship(agent: Agent, mirror: Mirror, plan: Plan, task: resolve.Task, view: View) -> str:
    sources = {"model": plan.model, **{f"data.{name}": source for name, source in plan.data.items()}}
    local = {key: task.locate(key, one.value) for key, one in sources.items() if one and one.kind == "local"}
    found = tree.collect(task.code, local, mirror.folder.parent)
    for path in found.left_out[:5]:
        view.note(f"not sent: {path}")
    if len(found.left_out) > 5:
        view.note(f"not sent: {len(found.left_out) - 5} more like these")
    digests = Digests(task.code)
    manifest = tree.manifest(found, digests)
    digests.save()
    try:
        sent = _send(agent, mirror.run, found, manifest)
    except ConnectionLostError as error:
        words = f"{error}\n  no run was begun   the same command again sends only what has not arrived whole"
        raise ConnectionLostError(error.host, words) from error
    size = size_text(sum(sent.values()))
    return (
        f"{len(sent)} of {len(manifest)} files sent, {size}"
        if sent
        else f"{len(manifest)} files, none to send"
    )


def _send(agent: Agent, run: str, found: tree.Tree, manifest: dict[str, Any]) -> dict[str, int]:
    """Offer a tree to the host, send what it lacks until it has put the tree in place; return what was sent, in bytes.

    Raises RunError when the host asks for what was not offered, or never has enough.
    """
    sources = {
        manifest[entry.path]["sha256"]: (entry.source, int(manifest[entry.path]["size"]))
        for entry in found.entries
        if entry.link is None
    }
    sent: dict[str, int] = {}
    answer = agent.call("offer", json.dumps(manifest).encode(), run=run, deadline_s=PLACING_S)
    for _ in range(SHIP_TRIES):
        missing = answer.values.get("missing")
        if not missing:
            return sent
        try:
            wanted = [sources[sha256] for sha256 in missing]
        except (KeyError, TypeError) as error:
            raise RunError(f"{agent.host} asks for a file that was not offered") from error
        sent.update(zip(missing, (size for _, size in wanted), strict=True))
        answer = agent.send_stream(
            "ship", b"", functools.partial(tree.write_files, wanted), run=run, files=missing
        )
    raise RunError(f"{agent.host} cannot keep what it is sent; is its disk sound?")


def size_text(size: float) -> str:
    """Return a size in bytes as a person reads it."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
