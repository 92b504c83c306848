"""A move: a run is stopped on its host, seen dead, and goes on from its last checkpoint on another one, as its child.

The child's id is on record on the old host before the new one hears of it. So a move that broke off, at whatever step, is
taken up by the next `launch recover RUN --host B`, and no second child begins.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from pydantic import ConfigDict, TypeAdapter
from rich.filesize import decimal

from launcher.errors import AgentError, RunError, UsageError
from launcher.hosts import Desk, connect
from launcher.planning import job_of
from launcher.runs import build_settings, env_file, resolve, secret_values
from launcher.runs.checkpoint_pulling import LAST, WHOLE, HomeCheckpoint, pull_checkpoint
from launcher.runs.contact import Contact, pass_gate_when_free
from launcher.runs.control import known_summary, stop, summary_of
from launcher.runs.following import refresh
from launcher.runs.launching import Filling, Resolved, begin, plan_with
from launcher.runs.meter import Meter
from launcher.runs.mirror import Mirror
from launcher.runs.probing import choose_profile, describe, probe
from launcher.runs.recovering import Outcome, RecoverRequest, Recovery, recover_on
from launcher.runs.run_desk import open_desk
from launcher.runs.run_id import new_run_id
from launcher.runs.runs_folder import runs_folder
from launcher.runs.secret_consent import check_consent
from launcher.runs.tree import SizedFile, write_files
from launcher.runs.verifiable import refuse_verification
from launcher.runtimes import open_for_plan
from launcher.values.answers import MovedTo
from launcher.values.checkpoint import SealedFile
from launcher.values.host import Host
from launcher.values.plan import Plan
from launcher.values.record import State, Summary, is_terminal

if TYPE_CHECKING:
    from launcher.hosts.channel import Incoming
    from launcher.runs.view import Stage, View
    from launcher.values.facts import Facts


class MoveRequest(NamedTuple):
    """Where a run is to go on: the host, and the card if it is named; files with secrets, and whether a plan that a host sent may name some."""

    host: str
    profile: str | None = None
    env_files: Sequence[str] = ()
    is_sure: bool = False
    wait_s: float = 0.0


def move(mirror: Mirror, request: MoveRequest, view: View) -> Recovery:
    """Have a run of this client go on at another host; if it lies there, recover it there.

    What can be refused is refused before the run is stopped. Raises UsageError, RefusedError, RunError and HostError.
    """
    target = resolve.host(request.host)
    with _connected(view, functools.partial(open_desk, mirror.host(), mirror)) as old:
        summary = _movable(old, mirror, request)
        outlook = old.runs.outlook(mirror.run)
        with _connected(view, functools.partial(connect, target)) as new:
            if new.root_id == old.root_id:
                return recover_on(new, mirror, RecoverRequest(request.env_files, request.is_sure), view)
            if outlook.moved is not None and (again := _taken_up(new, mirror, outlook.moved, request, view)):
                return again
            if not outlook.resumes:
                words = f"the script of {mirror.run} never called worker.resume_from(): it would start at step 1 again"
                raise RunError(
                    f"{words}\n  begin anew there   launch rerun {mirror.short} --host {target.name}"
                )
            return _move(old, new, _Errand(mirror, summary, target, request), view)


_Tree = dict[str, dict[str, str | int]]
_TREE = TypeAdapter(_Tree, config=ConfigDict(defer_build=True))


class _Errand(NamedTuple):
    mirror: Mirror
    summary: Summary
    target: Host
    request: MoveRequest


def _connected(view: View, dial: Callable[[], Desk]) -> Desk:
    with view.stage("connect") as stage:
        desk = dial()
        stage.text = f"{desk.host}, {desk.about}"
    return desk


def _movable(old: Desk, mirror: Mirror, request: MoveRequest) -> Summary:
    """Return the summary of a run that has not succeeded."""
    summary = known_summary(old, mirror.run)
    if summary.state == State.SUCCEEDED:
        words = f"{mirror.run} has succeeded: there is nothing left to move"
        raise UsageError(f"{words}\n  again there   launch rerun {mirror.short} --host {request.host}")
    return summary


def _taken_up(new: Desk, mirror: Mirror, moved: MovedTo, request: MoveRequest, view: View) -> Recovery | None:
    """Go on with the child of an earlier move; None if it never began, so that the move must be made again."""
    short = moved.run.rpartition("-")[2]
    if moved.root != new.root_id:
        words = f"{mirror.run} was moved to {moved.host or 'another host'} as {moved.run}"
        raise UsageError(f"{words}\n  that run   launch recover {short} --host {moved.host or 'HOST'}")
    if (child := summary_of(new, moved.run)) is None or new.runs.outlook(moved.run).half_made:
        return None
    heir = Mirror(moved.run, runs_folder())
    heir.bind_seen(resolve.host(request.host), new.root_id, child.time)
    if is_terminal(child.state):
        words = f"{mirror.run} was moved to {new.host} as {moved.run}, which has {child.state}"
        raise UsageError(f"{words}\n  a new run from its last checkpoint   launch resume {short}")
    return recover_on(new, heir, RecoverRequest(request.env_files, request.is_sure), view)


def _move(old: Desk, new: Desk, errand: _Errand, view: View) -> Recovery:
    mirror, request, target = errand.mirror, errand.request, errand.target
    refresh(old, mirror)
    before = mirror.whole_plan()
    refuse_verification(before, mirror)
    job = job_of(before)
    if not request.is_sure:
        check_consent(before.secrets, mirror, old.host, view, f"recover --host {target.name}")
    secrets = secret_values.values(job, env_file.read_all(request.env_files))
    with view.stage("probe") as stage:
        facts = probe(new, target, job)
        stage.text = describe(facts)
    plan = _plan(before, target, facts, request.profile)
    view.head(plan)
    contact = Contact(target, new, job_of(plan), facts, view, deadline=time.monotonic() + request.wait_s)
    contact = pass_gate_when_free(contact, plan)
    new.preparation.check_sources(plan)
    _checkpoint_at_hand(old, mirror, target)
    # From here on the run does not go on at its old host.
    if not is_terminal(errand.summary.state):
        with view.stage("stop") as stage:
            row = stop(old, mirror.run, now=False, grace_s=mirror.plan().stop_grace_s)
            if row.problem is not None:
                raise RunError(
                    f"{mirror.run} was stopped on {old.host}, but not all of it is gone: {row.problem}"
                )
            stage.text = f"{row.summary.state} on {old.host}, step {row.summary.step or '-'}"
    refresh(old, mirror)  # its last steps, for the curve
    with view.stage("pull") as stage, _explained(old, mirror, target):
        home = pull_checkpoint(old, mirror, WHOLE, stage)
        stage.text = home.words
    for passed in home.checkpoint.passed_over:
        view.note(f"{passed.checkpoint} passed over: {passed.wrong}")
    moved = old.runs.move(mirror.run, MovedTo(run=new_run_id(plan.job), host=target.name, root=new.root_id))
    if moved.root != new.root_id:
        raise RunError(f"{mirror.run} has just been moved to {moved.host} as {moved.run} by another client")
    build = build_settings.read(target, os.environ)
    with open_for_plan(new, target, plan, contact.facts, build) as runtime:
        fill = functools.partial(_fill, old, new, mirror, home)
        try:
            started = begin(contact, runtime, plan, secrets, Filling("ship", fill), moved.run)
        except AgentError as error:
            if error.code != "run-exists":
                raise
            words = f"{mirror.run} is being moved to {new.host} as {moved.run} by another client"
            again = f"launch recover {mirror.short} --host {target.name}"
            raise RunError(f"{words}\n  look again   {again}") from error
    started.interrupts.release()
    return Recovery(
        moved.run,
        new.host,
        Outcome.RECOVERED,
        State.RUNNING,
        f"from step {home.checkpoint.step} of {mirror.run}",
    )


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


def _checkpoint_at_hand(old: Desk, mirror: Mirror, target: Host) -> None:
    """Raise RunError if the run has no checkpoint yet."""
    with _explained(old, mirror, target):
        old.runs.checkpoint(mirror.run, LAST)


@contextlib.contextmanager
def _explained(old: Desk, mirror: Mirror, target: Host) -> Iterator[None]:
    """Say what to do if the host has no checkpoint of the run."""
    try:
        yield
    except AgentError as error:
        if error.code != "no-checkpoint":
            raise
        words = f"{mirror.run} has no whole checkpoint on {old.host}"
        again = f"begin anew there   launch rerun {mirror.short} --host {target.name}"
        raise RunError(
            f"{words}\n  once it has one   launch recover {mirror.short} --host {target.name}\n  {again}"
        ) from error


# what travels


def _fill(old: Desk, new: Desk, mirror: Mirror, home: HomeCheckpoint, child: Mirror, stage: Stage) -> str:
    """Put the checkpoint, and code and data as they were sent to the old host, in place for a run; return what was sent, in words.

    The code comes last: a run without it never began, so that none goes on without the checkpoint.
    """
    spool = mirror.folder / ".moving"
    try:
        size = _send_checkpoint(new, mirror, home, child, stage)
        size += _send_tree(old, new, mirror, child, spool, stage)
    finally:
        shutil.rmtree(spool, ignore_errors=True)
    return f"{home.checkpoint.name}, code and data of {mirror.short}; {decimal(size)} sent"


def _send_tree(old: Desk, new: Desk, mirror: Mirror, child: Mirror, spool: Path, stage: Stage) -> int:
    """Relay code and data from host to host: what the new one lacks comes here, is checked, and goes there."""
    manifest, sizes = _manifest(old, mirror)
    missing = new.preparation.offer(child.run, manifest)
    if not set(missing) <= sizes.keys():
        raise RunError(f"{new.host} asks for a file that was not offered")
    if missing:
        with mirror.disk_errors(spool):
            spool.mkdir(exist_ok=True)
            take = functools.partial(_spool, missing, sizes, spool, old.host)
            old.runs.contents(mirror.run, missing, take)
        files = [SizedFile(sha256[:12], str(spool / sha256), sizes[sha256]) for sha256 in missing]
        meter = Meter(sum(file.size for file in files), stage.moved)
        if new.preparation.ship(child.run, missing, functools.partial(write_files, files, meter=meter)):
            raise RunError(f"{new.host} cannot keep what it is sent; is its disk sound?")
    return sum(sizes[sha256] for sha256 in missing)


def _manifest(old: Desk, mirror: Mirror) -> tuple[_Tree, dict[str, int]]:
    """Return what was sent to a run, as its host has it, and the size of each content by its SHA-256.

    It is data of another machine. The new host checks the paths; the contents get their names here.
    """
    try:
        manifest = _TREE.validate_json(old.runs.tree(mirror.run))
        files = [
            SealedFile.model_validate(entry, strict=True) for entry in manifest.values() if "sha256" in entry
        ]
    except ValueError as error:
        raise RunError(f"{old.host} sent no list of the files of {mirror.run}") from error
    return manifest, {file.sha256: file.size for file in files}


def _spool(files: Sequence[str], sizes: dict[str, int], spool: Path, host: str, stream: Incoming) -> None:
    for sha256 in files:
        digest, left = hashlib.sha256(), sizes[sha256]
        with (spool / sha256).open("wb") as out:
            while left and (piece := stream.read(min(left, 1 << 18))):
                left -= len(piece)
                digest.update(piece)
                out.write(piece)
        if digest.hexdigest() != sha256:
            raise RunError(f"{host} has a file of the run no longer as it was sent: {sha256[:12]}")


def _send_checkpoint(new: Desk, mirror: Mirror, home: HomeCheckpoint, child: Mirror, stage: Stage) -> int:
    """Send the checkpoint that lies here, as its manifest says."""
    places = {
        content.sha256: (content.size, home.folder / content.path.split("/", 2)[2])
        for content in home.checkpoint.contents
    }
    missing = new.preparation.offer_checkpoint(child.run, mirror.run, home.checkpoint)
    if not set(missing) <= places.keys():
        raise RunError(f"{new.host} asks for a file that was not offered")
    files = [
        SizedFile(places[sha256][1].name, str(places[sha256][1]), places[sha256][0]) for sha256 in missing
    ]
    meter = Meter(sum(file.size for file in files), stage.moved)

    def write(sink: IO[bytes]) -> None:
        write_files(files, sink, meter)

    new.preparation.ship_checkpoint(child.run, missing, write)
    return sum(file.size for file in files)
