"""What a run that goes on at another host needs there, whether or not its old host is at hand.

First comes what can be refused, then the successor: its checkpoint, its code and data, its start.
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

from launcher.errors import AgentError, HostError, RunError, UnknownNameError, UsageError
from launcher.planning import job_of
from launcher.runs import build_settings, departures, env_file, resolve, secret_values, sent_record
from launcher.runs.contact import Contact, pass_gate_when_free
from launcher.runs.control import known_summary, summary_of
from launcher.runs.launching import Filling, Resolved, begin, plan_with
from launcher.runs.meter import Meter
from launcher.runs.mirror import Mirror
from launcher.runs.probing import choose_profile, describe, probe
from launcher.runs.recovering import Outcome, RecoverRequest, Recovery, recover_on
from launcher.runs.run_desk import connect
from launcher.runs.run_id import RUN_ID
from launcher.runs.runs_folder import runs_folder
from launcher.runs.secret_consent import check_consent
from launcher.runs.tree import SizedFile, write_files
from launcher.runs.verifiable import refuse_verification
from launcher.runtimes import open_for_plan
from launcher.values.record import Reason, State, is_terminal

if TYPE_CHECKING:
    from launcher.hosts import Desk
    from launcher.runs.checkpoint_pulling import HomeCheckpoint
    from launcher.runs.view import Stage, View
    from launcher.values.answers import MovedTo
    from launcher.values.facts import Facts
    from launcher.values.host import Host
    from launcher.values.plan import Plan


class MoveRequest(NamedTuple):
    """Where a run is to go on: the host, and the card if it is named; files with secrets, and whether a plan that a host sent may name some.

    `abandons`: also if the old host does not answer.
    """

    host: str
    profile: str | None = None
    env_files: Sequence[str] = ()
    is_sure: bool = False
    wait_s: float = 0.0
    abandons: bool = False


class Arrival(NamedTuple):
    """A host at which a run may go on: the gate has let its plan pass, and its secrets are at hand."""

    mirror: Mirror
    contact: Contact
    plan: Plan
    secrets: Mapping[str, str]


def connected(view: View, dial: Callable[[], Desk]) -> Desk:
    """Open a desk as a stage."""
    with view.stage("connect") as stage:
        desk = dial()
        stage.text = f"{desk.host}, {desk.about}"
    return desk


def refuse_succeeded(state: str | None, mirror: Mirror, host: str) -> None:
    """Raise UsageError for a run that has succeeded."""
    if state == State.SUCCEEDED:
        words = f"{mirror.run} has succeeded: there is nothing left to move"
        raise UsageError(f"{words}\n  again there   launch rerun {mirror.short} --host {host}")


def refuse_unresumable(*, resumes: bool, mirror: Mirror, host: str) -> None:
    """Raise RunError for a run whose script would start at step 1 again."""
    if not resumes:
        words = (
            f"the script of {mirror.run} never called worker.resume_from(): it would start at step 1 again"
        )
        raise RunError(f"{words}\n  begin anew there   launch rerun {mirror.short} --host {host}")


class Earlier(NamedTuple):
    """What an earlier move has come to: its successor goes on, or was given up because it never began."""

    recovery: Recovery | None = None
    given_up: str | None = None


def taken_up(new: Desk, mirror: Mirror, moved: MovedTo, request: MoveRequest, view: View) -> Earlier:
    """Go on with the successor of an earlier move; if it never began, see to it that it never will.

    Then the move is made again, here or at another host. Raises UsageError if the successor may be at another host, and
    RunError if what the old host has on record is no run.
    """
    check_successor(mirror, moved)
    short = moved.run.rpartition("-")[2]
    if moved.root != new.root_id:
        if _is_known(mirror, moved) and _is_given_up(moved, view):
            return Earlier(given_up=moved.run)
        words = f"{mirror.run} was moved to {moved.host or 'another host'} as {moved.run}"
        raise UsageError(
            f"{words}\n  that run   launch recover {short} --host {shlex.quote(moved.host or 'HOST')}"
        )
    if _give_up(new, moved, view):
        return Earlier(given_up=moved.run)
    heir, child = Mirror(moved.run, runs_folder()), known_summary(new, moved.run)
    if child.parent is None or child.parent.run != mirror.run:
        words = f"{mirror.host().name} says that {mirror.run} was moved to {new.host} as {moved.run}, but that run does not continue it"
        raise RunError(f"{words}\n  begin anew there   launch rerun {mirror.short} --host {request.host}")
    heir.bind_seen(resolve.host(request.host), new.root_id, child.time)
    if is_terminal(child.state):
        words = f"{mirror.run} was moved to {new.host} as {moved.run}, which has {child.state}"
        raise UsageError(f"{words}\n  a new run from its last checkpoint   launch resume {short}")
    return Earlier(recover_on(new, heir, RecoverRequest(request.env_files, request.is_sure), view))


def check_successor(mirror: Mirror, moved: MovedTo) -> None:
    """Raise RunError unless what a host has on record as a successor is a run's id: it becomes a path here."""
    if not RUN_ID.fullmatch(moved.run):
        raise RunError(f"{mirror.run}: its host says that it goes on as {moved.run!r}, which is no run")


def _is_known(mirror: Mirror, moved: MovedTo) -> bool:
    """Whether this client itself named the host of a successor. An old host's word alone leads to no connection."""
    own = departures.intention_of(mirror)
    return moved.host in resolve.hosts() or (own is not None and own.to == moved)


def _is_given_up(moved: MovedTo, view: View) -> bool:
    """Give up a successor at another host, if that answers and the successor never began; return whether it is given up."""
    try:
        with connected(view, functools.partial(connect, resolve.host(moved.host))) as other:
            return other.root_id == moved.root and _give_up(other, moved, view)
    except (UnknownNameError, HostError):
        return False


def _give_up(desk: Desk, moved: MovedTo, view: View) -> bool:
    """Give up a successor that its host does not have, or only half-made, or that never started there."""
    child = summary_of(desk, moved.run)
    if child is not None and child.state == State.FAILED and child.reason == Reason.NEVER_STARTED:
        view.note(f"{moved.run} never started on {desk.host}")
        return True
    if child is not None and not desk.runs.outlook(moved.run).half_made:
        return False
    return desk.preparation.forgo(moved.run)


def arrival(
    new: Desk, mirror: Mirror, target: Host, sender: str, request: MoveRequest, view: View
) -> Arrival:
    """Find out whether a run can go on at a host. Raises what the gate raises, before anything is made there.

    `sender` is the host whose word its plan is, if this client did not make it.
    """
    before = mirror.whole_plan()
    refuse_verification(before, mirror)
    job = job_of(before)
    if not request.is_sure:
        check_consent(before.secrets, mirror, sender, view, f"recover --host {target.name}")
    secrets = secret_values.values(job, env_file.read_all(request.env_files))
    with view.stage("probe") as stage:
        facts = probe(new, target, job)
        stage.text = describe(facts)
    plan = _plan(before, target, facts, request.profile)
    view.head(plan)
    contact = Contact(target, new, job_of(plan), facts, view, deadline=time.monotonic() + request.wait_s)
    contact = pass_gate_when_free(contact, plan)
    new.preparation.check_sources(plan)
    return Arrival(mirror, contact, plan, secrets)


def _plan(before: Plan, target: Host, facts: Facts, profile_name: str | None) -> Plan:
    """Return the plan of the run there: derived anew for its card; global batch, seed and schedule are those of the job."""
    job = job_of(before)
    job = job.model_copy(update={"batch": job.batch.model_copy(update={"micro": None})})
    named = () if profile_name is None else resolve.profiles_meant(profile_name)
    profile, _ = choose_profile(named, facts)
    here = Path.cwd()
    task = resolve.Task(job, here, here, frozenset(), None, packages_from=before.packages_from)
    resolved = Resolved(
        target, named, task, "auto", before.model_facts, None, None, teacher=before.teacher_facts
    )
    return plan_with(profile, resolved, facts, before.takes)


def go_on(arrival: Arrival, run: str, home: HomeCheckpoint, fill: Callable[[Mirror, Stage], str]) -> Recovery:
    """Begin the successor under its id, with what `fill` puts in place, and leave it to itself."""
    mirror, contact, plan, secrets = arrival
    target, new, view = contact.host, contact.desk, contact.view
    for passed in home.checkpoint.passed_over:
        view.note(f"{passed.checkpoint} passed over: {passed.wrong}")
    build = build_settings.read(target, os.environ)
    with open_for_plan(new, target, plan, contact.facts, build) as runtime:
        try:
            started = begin(contact, runtime, plan, secrets, Filling("ship", fill), run)
        except AgentError as error:
            if error.code not in ("run-exists", "forgone"):
                raise
            words = f"{mirror.run} is being moved to {new.host} as {run} by another client"
            again = f"launch recover {mirror.short} --host {target.name}"
            raise RunError(f"{words}\n  look again   {again}") from error
    started.interrupts.release()
    with contextlib.suppress(OSError):  # without it, only `recover --abandon` is refused
        sent_record.copy(mirror, started.mirror)
    words = f"from step {home.checkpoint.step} of {mirror.run}"
    return Recovery(run, new.host, Outcome.RECOVERED, State.RUNNING, words)


def send_checkpoint(new: Desk, mirror: Mirror, home: HomeCheckpoint, child: Mirror, stage: Stage) -> int:
    """Send the checkpoint that lies here, as its manifest says; return the bytes that travelled."""
    places = {
        content.sha256: (content.size, home.folder / content.path.split("/", 2)[2])
        for content in home.checkpoint.contents
    }
    missing = new.preparation.offer_checkpoint(child.run, mirror.run, home.checkpoint)
    check_offered(new, missing, places)
    files = [
        SizedFile(places[sha256][1].name, str(places[sha256][1]), places[sha256][0]) for sha256 in missing
    ]
    new.preparation.ship_checkpoint(child.run, missing, _writer(files, stage))
    return sum(file.size for file in files)


def send_files(
    new: Desk, child: Mirror, missing: Sequence[str], files: Sequence[SizedFile], stage: Stage
) -> None:
    """Send the missing files of a tree that was offered, in their order. Raises RunError if the host cannot keep them."""
    if new.preparation.ship(child.run, missing, _writer(files, stage)):
        raise RunError(f"{new.host} cannot keep what it is sent; is its disk sound?")


def check_offered(new: Desk, missing: Sequence[str], offered: Mapping[str, object]) -> None:
    """Raise RunError if a host asks for contents that it was not offered."""
    if not set(missing) <= offered.keys():
        raise RunError(f"{new.host} asks for a file that was not offered")


def _writer(files: Sequence[SizedFile], stage: Stage) -> Callable[[IO[bytes]], None]:
    meter = Meter(sum(file.size for file in files), stage.moved)
    return functools.partial(write_files, files, meter=meter)
