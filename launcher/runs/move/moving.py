"""Move a run: stop it on its host, verify that it is dead, and continue from its last checkpoint on another, as its child.

The child's id is recorded here and on the old host before the new host receives it. So after an interruption
at any step, the next `launch recover RUN --host B` completes the move, and no second child begins.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ConfigDict, TypeAdapter
from rich.filesize import decimal

from launcher.backends.base.rental_choice import check_limited
from launcher.backends.registry import backend_of
from launcher.config.lookup import Lookup
from launcher.copy import move_records
from launcher.copy.local_copy import LocalCopy
from launcher.copy.run_files import RunFiles
from launcher.errors import AgentError, RunError, UnreachableError, UsageError
from launcher.rental import records
from launcher.rental.lease.handoff import take
from launcher.rental.lease.release import hand_off
from launcher.rental.lease.rental_lease import Lease
from launcher.runs.follow.refreshing import refresh
from launcher.runs.follow.summaries import known_summary
from launcher.runs.move.abandoning import check_without, go_on_without
from launcher.runs.move.move_target import (
    EarlierMove,
    MoveRequest,
    Successor,
    arrival,
    check_offered,
    check_successor,
    connected,
    consented,
    give_up_elsewhere,
    go_on,
    refuse_succeeded,
    refuse_unresumable,
    send_checkpoint,
    send_files,
    taken_up,
    wanted_like,
)
from launcher.runs.pull.checkpoint_pulling import LAST, WHOLE, LocalCheckpoint, pull_checkpoint
from launcher.runs.rented.acquire import acquire, left_on_failure
from launcher.runs.rented.lost_machines import look_for, reach
from launcher.runs.rented.rented_runs import end_rent_later, pass_on
from launcher.runs.resume.recovering import RecoverRequest, Recovery, recover_on
from launcher.runs.run_client import connect
from launcher.runs.run_stopping import stop
from launcher.transport.client.host_client import HostClient
from launcher.upload.tree import SizedFile
from launcher.values.host import Host
from launcher.values.record import Summary, is_terminal
from launcher.values.reported.answers import MovedTo
from launcher.values.reported.checkpoint import SealedFile

if TYPE_CHECKING:
    from launcher.runs.follow.view import Stage, View
    from launcher.transport.channel import Incoming


def move(local_copy: LocalCopy, request: MoveRequest, view: View) -> Recovery:
    """Continue a run of this client on another host; if it is already there, recover it.

    All refusals come before the run is stopped, and before a machine is rented. Raises UsageError,
    RefusedError, RunError and HostError.
    """
    target = Lookup().host(request.host)
    move_records.check_readable(local_copy)
    if backend_of(target).running.rental(target) is None:
        return move_to(local_copy, target, request, Successor(), view)
    with _rented(local_copy, target, request, view) as (lease, next_run):
        agreed = request if next_run.shown is None else request._replace(is_sure=True)
        recovery = move_to(local_copy, lease.host, agreed, next_run, view)
    hand_off(lease, view)
    return recovery


@contextlib.contextmanager
def _rented(
    local_copy: LocalCopy, target: Host, request: MoveRequest, view: View
) -> Iterator[tuple[Lease, Successor]]:
    """Yield the lease of a machine for a run's successor: that of an interrupted move, or a new one after the user agrees."""
    if (lease := _lease_of_earlier(local_copy, target)) is not None:
        with left_on_failure(lease, view):
            yield lease, Successor(expect=functools.partial(pass_on, lease))
        return
    check_limited(target)
    sender = check_move(local_copy, target, request, view)
    before = local_copy.whole_plan()
    consented(local_copy, before, target, sender, request, view)
    with acquire(wanted_like(before, target, request), view) as machine:
        if machine.lease is not None:
            yield machine.lease, Successor(machine.run, machine.plan)


def _lease_of_earlier(local_copy: LocalCopy, target: Host) -> Lease | None:
    """Return the lease of the machine that an earlier, interrupted move rented, if it is still rented; else None.

    Raises UsageError if another process holds it.
    """
    earlier = move_records.intention_of(local_copy)
    found = None if earlier is None else records.rented_for(earlier.run)
    if earlier is None or found is None or found.record.machine.name != target.name:
        return None
    if not look_for(found).rental.is_open:
        return None
    lease = take(found)
    if lease is None:
        raise UsageError(move_records.moved_words(local_copy, earlier.to))
    return lease


def check_move(
    local_copy: LocalCopy, target: Host, request: MoveRequest, view: View, *, gives_up: bool = True
) -> str:
    """Check in the old host's records whether a run can move; return that host's name, as the sender of the plan.

    Raises the errors of a refused move. A successor that another client started is given up if it never began
    to train, unless `gives_up` is false.
    """
    try:
        client = connected(view, functools.partial(reach, local_copy.host(), local_copy))
    except UnreachableError as error:
        check_without(local_copy, target, request, error, view)
        return local_copy.host().name
    with client as old:
        refresh(old, local_copy)
        refuse_succeeded(known_summary(old, local_copy.run).state, local_copy, target.name)
        outlook = old.runs.outlook(local_copy.run)
        recorded_move = move_records.recorded_move_of(local_copy)
        moved = outlook.moved or (recorded_move.to if recorded_move is not None else None)
        if moved is not None and not gives_up:
            raise UsageError(move_records.moved_words(local_copy, moved))
        if moved is not None:
            give_up_elsewhere(local_copy, moved, view)
        refuse_unresumable(resumes=outlook.resumes, local_copy=local_copy, host=target.name)
        check_checkpoint(old, local_copy, target)
        return old.host


def move_to(
    local_copy: LocalCopy, target: Host, request: MoveRequest, next_run: Successor, view: View
) -> Recovery:
    """Move a run to a machine. If the run leaves a rented machine, that rental ends only after the move."""
    with records.moving(local_copy.run):
        return _move_to(local_copy, target, request, next_run, view)


def _move_to(
    local_copy: LocalCopy, target: Host, request: MoveRequest, next_run: Successor, view: View
) -> Recovery:
    try:
        client = connected(view, functools.partial(reach, local_copy.host(), local_copy))
    except UnreachableError as error:
        return go_on_without(local_copy, target, request, error, next_run, view)
    with client as old:
        if request.abandons:
            view.note(f"{old.host} answers: this is an ordinary move, which stops the run there first")
        summary = known_summary(old, local_copy.run)
        refuse_succeeded(summary.state, local_copy, target.name)
        outlook = old.runs.outlook(local_copy.run)
        recorded_move = move_records.recorded_move_of(local_copy)
        moved = outlook.moved or (recorded_move.to if recorded_move is not None else None)
        with connected(view, functools.partial(connect, target)) as new:
            if new.root_id == old.root_id:
                return recover_on(new, local_copy, RecoverRequest(request.env_files, request.is_sure), view)
            earlier = (
                taken_up(new, local_copy, moved, target, request, view)
                if moved is not None
                else EarlierMove()
            )
            if earlier.recovery is not None:
                end_rent_later(local_copy, view)
                return earlier.recovery
            refuse_unresumable(resumes=outlook.resumes, local_copy=local_copy, host=target.name)
            recovery = _move(
                old, new, _MoveErrand(local_copy, summary, target, request, next_run, earlier.given_up), view
            )
    end_rent_later(local_copy, view)
    return recovery


_Tree = dict[str, dict[str, str | int]]
SPOOL = ".moving"
"""The folder for files on their way between hosts, each named by its SHA-256."""
_TREE = TypeAdapter(_Tree, config=ConfigDict(defer_build=True))


class _MoveErrand(NamedTuple):
    local_copy: LocalCopy
    summary: Summary
    target: Host
    request: MoveRequest
    next_run: Successor
    given_up: str | None


def _move(old: HostClient, new: HostClient, errand: _MoveErrand, view: View) -> Recovery:
    local_copy, request, target = errand.local_copy, errand.request, errand.target
    refresh(old, local_copy)
    place = arrival(new, local_copy, target, old.host, request, errand.next_run, view)
    check_checkpoint(old, local_copy, target)
    # From here on the run does not continue on its old host.
    if not is_terminal(errand.summary.state):
        with view.stage("stop") as stage:
            row = stop(old, local_copy.run, now=False, grace_s=local_copy.record.plan().stop_grace_s)
            if row.problem is not None:
                raise RunError(
                    f"{local_copy.run} was stopped on {old.host}, but not all of it is gone: {row.problem}"
                )
            stage.text = f"{row.summary.state} on {old.host}, step {row.summary.step or '-'}"
        refuse_succeeded(row.summary.state, local_copy, target.name)  # it ended before it was stopped
    refresh(old, local_copy)  # its last steps, for the curve
    with view.stage("pull") as stage, _explained(old, local_copy, target):
        home = pull_checkpoint(old, local_copy, WHOLE, stage)
        stage.text = home.words
    successor = MovedTo(run=errand.next_run.id_of(place.plan.job), host=target.name, root=new.root_id)
    recorded_move = move_records.intend(local_copy, successor, errand.given_up)
    moved = old.runs.move(local_copy.run, recorded_move.to, recorded_move.given_up)
    check_successor(local_copy, moved)
    if moved.root != new.root_id:
        raise RunError(
            f"{local_copy.run} has just been moved to {moved.host} as {moved.run} by another client"
        )
    move_records.note(local_copy, run=moved.run)  # the host may have recorded another command's successor
    recovery = go_on(place, moved.run, home, functools.partial(fill_from_old, old, new, local_copy, home))
    move_records.note(local_copy, settled=time.time())
    return recovery


def check_checkpoint(old: HostClient, local_copy: LocalCopy, target: Host) -> None:
    """Raise RunError if the run has no checkpoint yet."""
    with _explained(old, local_copy, target):
        old.runs.checkpoint(local_copy.run, LAST)


@contextlib.contextmanager
def _explained(old: HostClient, local_copy: LocalCopy, target: Host) -> Iterator[None]:
    """Explain a missing checkpoint on the host, with the commands to use."""
    try:
        yield
    except AgentError as error:
        if error.code != "no-checkpoint":
            raise
        words = f"{local_copy.run} has no whole checkpoint on {old.host}"
        again = f"start again there   launch rerun {local_copy.short} --host {target.name}"
        raise RunError(
            f"{words}\n  once it has one   launch recover {local_copy.short} --host {target.name}\n  {again}"
        ) from error


# transfers


def fill_from_old(
    old: HostClient,
    new: HostClient,
    local_copy: LocalCopy,
    home: LocalCheckpoint,
    child: LocalCopy,
    stage: Stage,
) -> str:
    """Put the checkpoint, and the code and data sent to the old host, in place for a run; return a summary.

    The code is sent last: a run without code has never begun, so no run continues without the checkpoint.
    """
    try:
        size = send_checkpoint(new, local_copy, home, child, stage)
        size += _send_tree(old, new, local_copy, child, stage)
    finally:
        with contextlib.suppress(OSError):
            local_copy.files.remove_tree(SPOOL)
    return f"{home.checkpoint.name}, code and data of {local_copy.short}; {decimal(size)} sent"


def _send_tree(
    old: HostClient, new: HostClient, local_copy: LocalCopy, child: LocalCopy, stage: Stage
) -> int:
    """Relay code and data between hosts: files that the new host lacks are fetched, checked here, and sent on."""
    manifest, sizes = _manifest(old, local_copy)
    missing = new.preparation.offer(child.run, manifest)
    check_offered(new, missing, sizes)
    if missing:
        with local_copy.disk_errors(local_copy.folder / SPOOL):
            local_copy.files.make_folder(SPOOL)
            take = functools.partial(_spool, missing, sizes, local_copy.files, old.host)
            old.runs.contents(local_copy.run, missing, take)
        files = [
            SizedFile(sha256[:12], local_copy.files.at(f"{SPOOL}/{sha256}"), sizes[sha256])
            for sha256 in missing
        ]
        send_files(new, child, missing, files, stage)
    return sum(sizes[sha256] for sha256 in missing)


def _manifest(old: HostClient, local_copy: LocalCopy) -> tuple[_Tree, dict[str, int]]:
    """Return the files sent to a run, as its host lists them, and the size of each content by its SHA-256.

    The list comes from another machine. The new host checks the paths; here each content is named by its digest.
    """
    try:
        manifest = _TREE.validate_json(old.runs.tree(local_copy.run))
        files = [
            SealedFile.model_validate(entry, strict=True) for entry in manifest.values() if "sha256" in entry
        ]
    except ValueError as error:
        raise RunError(f"{old.host} sent no list of the files of {local_copy.run}") from error
    return manifest, {file.sha256: file.size for file in files}


def _spool(
    wanted: Sequence[str], sizes: dict[str, int], files: RunFiles, host: str, stream: Incoming
) -> None:
    for sha256 in wanted:
        digest, left = hashlib.sha256(), sizes[sha256]
        with files.open(f"{SPOOL}/{sha256}", "wb") as out:
            while left and (piece := stream.read(min(left, 1 << 18))):
                left -= len(piece)
                digest.update(piece)
                out.write(piece)
        if digest.hexdigest() != sha256:
            raise RunError(f"{host} no longer has a file of the run as it was sent: {sha256[:12]}")
