"""Move a run whose old host does not answer: the run continues on another host from this client's files.

The decision is recorded here before the new host is contacted, and the old host is informed at the next
contact; see pending_stops.py. Until then the old host may still train; this work does not reach the successor.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, NamedTuple

from rich.filesize import decimal

from launcher.copy import move_records
from launcher.errors import LaunchError, MachineGoneError, RunError, UnreachableError, UsageError
from launcher.rental import records
from launcher.runs.move.move_target import (
    EarlierMove,
    MoveRequest,
    MoveTarget,
    Successor,
    arrival,
    check_offered,
    connected,
    give_up_elsewhere,
    go_on,
    refuse_succeeded,
    refuse_unresumable,
    send_checkpoint,
    send_files,
    taken_up,
)
from launcher.runs.move.pending_stops import root_of
from launcher.runs.pull import checkpoints_here
from launcher.runs.rented.lost_machines import end_rental
from launcher.runs.rented.machine_gone import gone
from launcher.runs.resume.recovering import RecoverRequest, Recovery, recover_on
from launcher.runs.run_client import connect
from launcher.upload import upload_record
from launcher.values.reported.answers import MovedTo

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.copy.move_records import MoveRecord
    from launcher.runs.follow.view import Stage, View
    from launcher.runs.pull.checkpoint_pulling import LocalCheckpoint
    from launcher.transport.client.host_client import HostClient
    from launcher.upload.tree import SizedFile
    from launcher.upload.upload_record import UploadRecord
    from launcher.values.host import Host

MAX_NAMED = 3


def check_without(
    local_copy: LocalCopy, target: Host, request: MoveRequest, why: UnreachableError, view: View
) -> None:
    """Raise `why` unless the user requested a move without the old host. Raise RunError if files for the move are missing here."""
    if not _goes_without(request, why):
        raise _explained(why, local_copy, target)
    if (intention := move_records.intention_of(local_copy)) is not None:
        give_up_elsewhere(local_copy, intention.to, view)
    _refuse_ended(local_copy, target)
    sent_from_here(local_copy, target)
    newest_here(local_copy, target)
    refuse_unresumable(resumes=checkpoints_here.resumes(local_copy), local_copy=local_copy, host=target.name)


def go_on_without(
    local_copy: LocalCopy,
    target: Host,
    request: MoveRequest,
    why: UnreachableError,
    next_run: Successor,
    view: View,
) -> Recovery:
    """Move a run while its host does not answer, if the user requested that, now or in an earlier move.

    A rented machine that is gone cannot train, so no request is needed then. If a request is missing, raises
    `why` with the flag that allows the move. Raises the errors of `move`.
    """
    intention = move_records.intention_of(local_copy)
    if intention is None and not _goes_without(request, why):
        raise _explained(why, local_copy, target)
    with connected(view, functools.partial(connect, target)) as new:
        if new.root_id == root_of(local_copy):
            return recover_on(new, local_copy, RecoverRequest(request.env_files, request.is_sure), view)
        earlier = EarlierMove()
        if intention is not None:
            earlier = taken_up(new, local_copy, intention.to, target, request, view)
        if earlier.recovery is not None:
            _settle(local_copy, why, view)
            return earlier.recovery
        if not _goes_without(request, why):
            raise _explained(why, local_copy, target)
        recovery = _abandon(
            new, _AbandonErrand(local_copy, target, request, next_run, earlier.given_up), view
        )
    _settle(local_copy, why, view)
    return recovery


def _goes_without(request: MoveRequest, why: UnreachableError) -> bool:
    return request.abandons or isinstance(why, MachineGoneError)


def _settle(local_copy: LocalCopy, why: UnreachableError, view: View) -> None:
    """Note whether the old host may still train. A rented machine is terminated, if it still exists."""
    old, found = local_copy.host().name, records.rented_for(local_copy.run)
    if isinstance(why, MachineGoneError):
        view.note(str(why).splitlines()[0])
        move_records.note(local_copy, settled=time.time())
    elif found is not None and end_rental(found, "its run was abandoned", view) is not None:
        move_records.note(local_copy, settled=time.time())
    else:
        view.note(
            f"{old} may still train {local_copy.run}: the next command that reaches {old} ends it there"
        )


def _explained(why: UnreachableError, local_copy: LocalCopy, target: Host) -> UnreachableError:
    return UnreachableError(
        why.host,
        f"{why}\n  without it   launch recover {local_copy.short} --host {target.name} --abandon\n"
        f"    continues on {target.name} from the newest local checkpoint; {why.host} may keep training until it is reachable again, and ends the run then",
    )


class _AbandonErrand(NamedTuple):
    local_copy: LocalCopy
    target: Host
    request: MoveRequest
    next_run: Successor
    given_up: str | None


def _abandon(new: HostClient, errand: _AbandonErrand, view: View) -> Recovery:
    local_copy, target, request, next_run, given_up = errand
    old = local_copy.host().name
    if root_of(local_copy) is None:
        raise RunError(
            f"{local_copy.run} cannot be abandoned: this client does not know the root that {old} has"
        )
    _refuse_ended(local_copy, target)
    sent = sent_from_here(local_copy, target)
    with view.stage("read") as stage:
        # Check for a checkpoint first: without one, a run that was never followed has no local records either.
        home = newest_here(local_copy, target)
        refuse_unresumable(
            resumes=checkpoints_here.resumes(local_copy), local_copy=local_copy, host=target.name
        )
        stage.text = f"{home.checkpoint.name}, step {home.checkpoint.step}: whole, as {old} sent it"
    place = arrival(new, local_copy, target, old, request, next_run, view)
    _check_contents(new, sent, local_copy, target)
    successor = MovedTo(run=next_run.id_of(place.plan.job), host=target.name, root=new.root_id)
    recorded_move = move_records.abandon(local_copy, successor, given_up)
    return _begin(place, recorded_move, home, sent)


def _begin(
    place: MoveTarget, recorded_move: MoveRecord, home: LocalCheckpoint, sent: UploadRecord
) -> Recovery:
    local_copy, new = place.local_copy, place.contact.client
    if recorded_move.root != new.root_id:
        words = f"another command has just abandoned {local_copy.run}: it continues on {recorded_move.host} as {recorded_move.run}"
        raise UsageError(
            f"{words}\n  that run   launch recover {recorded_move.short} --host {recorded_move.host}"
        )
    return go_on(place, recorded_move.run, home, functools.partial(fill_from_here, place, home, sent))


def _refuse_ended(local_copy: LocalCopy, target: Host) -> None:
    state = local_copy.state()
    refuse_succeeded(state.state if state is not None else None, local_copy, target.name)


def newest_here(local_copy: LocalCopy, target: Host) -> LocalCheckpoint:
    """Return the newest whole checkpoint in the local copy.

    Raises RunError without one, MachineGoneError if the run's machine is gone too.
    """
    here = checkpoints_here.newest_whole(local_copy)
    if here.newest is not None:
        sealed = here.newest.checkpoint.model_copy(update={"passed_over": tuple(here.passed_over)})
        return here.newest._replace(checkpoint=sealed)
    wrong = "".join(f"\n  {one.checkpoint}: {one.wrong}" for one in here.passed_over[:MAX_NAMED])
    raise _nothing_to_go_on_with(
        local_copy,
        target,
        f"no whole checkpoint of {local_copy.run} is here{wrong}",
        '\n  next time             checkpoints = "pull" in the job keeps the newest one here',
    )


def _nothing_to_go_on_with(local_copy: LocalCopy, target: Host, why: str, more: str = "") -> LaunchError:
    """Return the error for a run whose local files do not suffice; MachineGoneError if its rented machine is gone for good."""
    name, anew = local_copy.host().name, f"launch rerun {local_copy.short} --host {target.name}"
    if (words := gone(local_copy)) is not None:
        return MachineGoneError(
            name, f"{words.splitlines()[0]}\n  {why}\n  from its start        {anew}{more}"
        )
    return RunError(
        f"{why}\n"
        f"  once {name} answers   launch recover {local_copy.short} --host {target.name}\n"
        f"  start again there      {anew}{more}"
    )


def sent_from_here(local_copy: LocalCopy, target: Host) -> UploadRecord:
    """Return the record of a run's upload. Raises RunError or MachineGoneError if it is not here."""
    sent = upload_record.read(local_copy)
    if sent is not None:
        return sent
    raise _nothing_to_go_on_with(
        local_copy,
        target,
        f"{local_copy.run}: this client has no record of the code and data that were sent: another client launched it, or an older version",
    )


def _check_contents(new: HostClient, sent: UploadRecord, local_copy: LocalCopy, target: Host) -> None:
    """Raise RunError unless the new host or this machine has each uploaded file of code and data unchanged."""
    missing = new.preparation.lacking(sent.manifest)
    check_offered(new, missing, sent.sizes)
    _files(new, sent, missing, local_copy, target)


def _files(
    new: HostClient, sent: UploadRecord, missing: list[str], local_copy: LocalCopy, target: Host
) -> list[SizedFile]:
    found = upload_record.find(sent, missing)
    if found.changed:
        names, more = ", ".join(found.changed[:MAX_NAMED]), len(found.changed) - MAX_NAMED
        raise RunError(
            f"not as it was sent to {local_copy.host().name}, and {new.host} has no copy: {names}{f' and {more} more' if more > 0 else ''}\n"
            f"  restore it, then   launch recover {local_copy.short} --host {target.name} --abandon\n"
            f"  start again there   launch rerun {local_copy.short} --host {target.name}"
        )
    return [found.files[sha256] for sha256 in missing]


def fill_from_here(
    place: MoveTarget, home: LocalCheckpoint, sent: UploadRecord, child: LocalCopy, stage: Stage
) -> str:
    """Put the checkpoint, and the code and data as uploaded, in place for a run; return a summary of the bytes sent.

    The code is sent last: a run without code has never begun, so no run continues without the checkpoint.
    """
    local_copy, new, target = place.local_copy, place.contact.client, place.contact.host
    size = send_checkpoint(new, local_copy, home, child, stage)
    missing = new.preparation.offer(child.run, sent.manifest)
    check_offered(new, missing, sent.sizes)
    if missing:
        files = _files(new, sent, missing, local_copy, target)
        send_files(new, child, missing, files, stage)
        size += sum(file.size for file in files)
    return f"{home.checkpoint.name}, code and data of {local_copy.short}; {decimal(size)} sent"
