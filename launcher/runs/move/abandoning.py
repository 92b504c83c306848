"""Move a run whose old host does not answer: the run continues on another host from this client's files.

The decision is recorded here before the new host is contacted, and the old host is informed at the next
contact; see pending_stops.py. Until then it may still train; its further work does not reach the successor.
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
from launcher.runs.run_desk import connect
from launcher.upload import upload_record
from launcher.values.reported.answers import MovedTo

if TYPE_CHECKING:
    from launcher.copy.mirror import LocalCopy
    from launcher.copy.move_record import MoveRecord
    from launcher.runs.follow.view import Stage, View
    from launcher.runs.pull.checkpoint_pulling import LocalCheckpoint
    from launcher.transport.client.desk import HostClient
    from launcher.upload.tree import SizedFile
    from launcher.upload.upload_record import UploadRecord
    from launcher.values.host import Host

MOST_NAMED = 3


def check_without(
    mirror: LocalCopy, target: Host, request: MoveRequest, why: UnreachableError, view: View
) -> None:
    """Raise `why` unless the move without the old host was requested, and RunError if files for it are missing here."""
    if not _goes_without(request, why):
        raise _explained(why, mirror, target)
    if (intention := move_records.intention_of(mirror)) is not None:
        give_up_elsewhere(mirror, intention.to, view)
    _refuse_ended(mirror, target)
    sent_from_here(mirror, target)
    newest_here(mirror, target)
    refuse_unresumable(resumes=checkpoints_here.resumes(mirror), mirror=mirror, host=target.name)


def go_on_without(
    mirror: LocalCopy, target: Host, request: MoveRequest, why: UnreachableError, heir: Successor, view: View
) -> Recovery:
    """Move a run while its host does not answer, if that was requested, now or in an earlier move.

    A rented machine that is gone cannot train, so no request is needed then. Raises `why`, with the flag that
    allows the move, and the errors of `move`.
    """
    intention = move_records.intention_of(mirror)
    if intention is None and not _goes_without(request, why):
        raise _explained(why, mirror, target)
    with connected(view, functools.partial(connect, target)) as new:
        if new.root_id == root_of(mirror):
            return recover_on(new, mirror, RecoverRequest(request.env_files, request.is_sure), view)
        earlier = EarlierMove()
        if intention is not None:
            earlier = taken_up(new, mirror, intention.to, target, request, view)
        if earlier.recovery is not None:
            _settle(mirror, why, view)
            return earlier.recovery
        if not _goes_without(request, why):
            raise _explained(why, mirror, target)
        recovery = _abandon(new, _AbandonErrand(mirror, target, request, heir, earlier.given_up), view)
    _settle(mirror, why, view)
    return recovery


def _goes_without(request: MoveRequest, why: UnreachableError) -> bool:
    return request.abandons or isinstance(why, MachineGoneError)


def _settle(mirror: LocalCopy, why: UnreachableError, view: View) -> None:
    """Note whether the old host may still train. A rented machine is terminated, if it still exists."""
    old, found = mirror.host().name, records.rented_for(mirror.run)
    if isinstance(why, MachineGoneError):
        view.note(str(why).splitlines()[0])
        move_records.note(mirror, settled=time.time())
    elif found is not None and end_rental(found, "its run was abandoned", view) is not None:
        move_records.note(mirror, settled=time.time())
    else:
        view.note(f"{old} may still train {mirror.run}: the next command that reaches {old} ends it there")


def _explained(why: UnreachableError, mirror: LocalCopy, target: Host) -> UnreachableError:
    return UnreachableError(
        why.host,
        f"{why}\n  without it   launch recover {mirror.short} --host {target.name} --abandon\n"
        f"    continues on {target.name} from the newest local checkpoint; {why.host} may keep training until it is reachable again, and ends the run then",
    )


class _AbandonErrand(NamedTuple):
    mirror: LocalCopy
    target: Host
    request: MoveRequest
    heir: Successor
    given_up: str | None


def _abandon(new: HostClient, errand: _AbandonErrand, view: View) -> Recovery:
    mirror, target, request, heir, given_up = errand
    old = mirror.host().name
    if root_of(mirror) is None:
        raise RunError(f"{mirror.run} cannot be abandoned: this client does not know the root that {old} has")
    _refuse_ended(mirror, target)
    sent = sent_from_here(mirror, target)
    with view.stage("read") as stage:
        home = newest_here(
            mirror, target
        )  # first: for a run that was never followed, all other local facts come from it
        refuse_unresumable(resumes=checkpoints_here.resumes(mirror), mirror=mirror, host=target.name)
        stage.text = f"{home.checkpoint.name}, step {home.checkpoint.step}: whole, as {old} sent it"
    place = arrival(new, mirror, target, old, request, heir, view)
    _check_contents(new, sent, mirror, target)
    successor = MovedTo(run=heir.id_of(place.plan.job), host=target.name, root=new.root_id)
    departure = move_records.abandon(mirror, successor, given_up)
    return _begin(place, departure, home, sent)


def _begin(place: MoveTarget, departure: MoveRecord, home: LocalCheckpoint, sent: UploadRecord) -> Recovery:
    mirror, new = place.mirror, place.contact.desk
    if departure.root != new.root_id:
        words = f"{mirror.run} has just been abandoned for {departure.host}, as {departure.run}, by another command"
        raise UsageError(f"{words}\n  that run   launch recover {departure.short} --host {departure.host}")
    return go_on(place, departure.run, home, functools.partial(fill_from_here, place, home, sent))


def _refuse_ended(mirror: LocalCopy, target: Host) -> None:
    state = mirror.state()
    refuse_succeeded(state.state if state is not None else None, mirror, target.name)


def newest_here(mirror: LocalCopy, target: Host) -> LocalCheckpoint:
    """Return the newest whole checkpoint in the local copy.

    Raises RunError without one, MachineGoneError if the run's machine is gone too.
    """
    here = checkpoints_here.newest_whole(mirror)
    if here.newest is not None:
        sealed = here.newest.checkpoint.model_copy(update={"passed_over": tuple(here.passed_over)})
        return here.newest._replace(checkpoint=sealed)
    wrong = "".join(f"\n  {one.checkpoint}: {one.wrong}" for one in here.passed_over[:MOST_NAMED])
    raise _nothing_to_go_on_with(
        mirror,
        target,
        f"no whole checkpoint of {mirror.run} is here{wrong}",
        '\n  next time             checkpoints = "pull" in the job keeps the newest one here',
    )


def _nothing_to_go_on_with(mirror: LocalCopy, target: Host, why: str, more: str = "") -> LaunchError:
    """Return the error for a run whose local files do not suffice; MachineGoneError if its rented machine is gone for good."""
    name, anew = mirror.host().name, f"launch rerun {mirror.short} --host {target.name}"
    if (words := gone(mirror)) is not None:
        return MachineGoneError(
            name, f"{words.splitlines()[0]}\n  {why}\n  from its start        {anew}{more}"
        )
    return RunError(
        f"{why}\n"
        f"  once {name} answers   launch recover {mirror.short} --host {target.name}\n"
        f"  begin anew there      {anew}{more}"
    )


def sent_from_here(mirror: LocalCopy, target: Host) -> UploadRecord:
    """Return the record of a run's upload. Raises RunError or MachineGoneError if it is not here."""
    sent = upload_record.read(mirror)
    if sent is not None:
        return sent
    raise _nothing_to_go_on_with(
        mirror,
        target,
        f"{mirror.run}: this client has no record of the code and data that were sent: another one launched it, or an older version",
    )


def _check_contents(new: HostClient, sent: UploadRecord, mirror: LocalCopy, target: Host) -> None:
    """Raise RunError unless the new host or this machine has each uploaded file of code and data unchanged."""
    missing = new.preparation.lacking(sent.manifest)
    check_offered(new, missing, sent.sizes)
    _files(new, sent, missing, mirror, target)


def _files(
    new: HostClient, sent: UploadRecord, missing: list[str], mirror: LocalCopy, target: Host
) -> list[SizedFile]:
    found = upload_record.find(sent, missing)
    if found.changed:
        names, more = ", ".join(found.changed[:MOST_NAMED]), len(found.changed) - MOST_NAMED
        raise RunError(
            f"not as it was sent to {mirror.host().name}, and {new.host} has no copy: {names}{f' and {more} more' if more > 0 else ''}\n"
            f"  restore it, then   launch recover {mirror.short} --host {target.name} --abandon\n"
            f"  begin anew there   launch rerun {mirror.short} --host {target.name}"
        )
    return [found.files[sha256] for sha256 in missing]


def fill_from_here(
    place: MoveTarget, home: LocalCheckpoint, sent: UploadRecord, child: LocalCopy, stage: Stage
) -> str:
    """Put the checkpoint, and the code and data as uploaded, in place for a run; return a summary of the bytes sent.

    The code comes last: a run without code never began, so that no run continues without the checkpoint.
    """
    mirror, new, target = place.mirror, place.contact.desk, place.contact.host
    size = send_checkpoint(new, mirror, home, child, stage)
    missing = new.preparation.offer(child.run, sent.manifest)
    check_offered(new, missing, sent.sizes)
    if missing:
        files = _files(new, sent, missing, mirror, target)
        send_files(new, child, missing, files, stage)
        size += sum(file.size for file in files)
    return f"{home.checkpoint.name}, code and data of {mirror.short}; {decimal(size)} sent"
