"""A client's contact with a run: it decides the state of a run that no process holds, or ends the run.

A contact is recorded as a numbered folder of kind `contact`, written while its lock keeps other clients out.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, cast

from ..cards import lease
from ..liveness import run_state
from ..liveness.liveness import EndError
from ..record import strict_json
from ..record.files import REFUSED, read_text, remove_folder, write_durably
from ..record.locks import Lock
from ..record.run_progress import progress_of
from ..record.rundir import TERMINAL, VERSION, WISHES, RecordFolder, Run
from ..store.secret_end import forget_secrets
from ..system import process, token_processes
from .requests import RequestError

if TYPE_CHECKING:
    from ..record.run_records import AttemptRecord, PreviousRecord, RecordedRuntime, StateRecord

CONTACT_S = 15.0  # a sweep may be ending processes of the run
LEFTOVERS_GRACE_S = 5.0


# runs that no process holds


def check_is_here(run: Run) -> None:
    """Raise RequestError for a run that was recorded on another host, e.g. in a shared home."""
    if not run_state.probe_of(run).is_here(run):
        raise RequestError("other-host", "run %s belongs to another host (id %s)" % (run.id, run.place_id()))


@contextlib.contextmanager
def contact(run: Run) -> Iterator[bool]:
    """Let one client at a time decide the state of a run that no process holds.

    Yields whether this client may.
    """
    lock = Lock.take(run.contact_lock, CONTACT_S)
    run.open_up()
    run_state.probe_of(run).forget(run)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def settle(
    run: Run,
    state: str,
    reason: Optional[str],
    *,
    by: Optional[str] = None,
    runtime: Optional[RecordedRuntime] = None,
    **more: Any,
) -> RecordFolder:
    """End the leftover processes of a run that no process holds, and write its new state.

    Returns the contact's folder, still held. `by` is the client that asked for it. `runtime` is the run's new
    runtime if it has changed. Raises OSError if the disk refuses; nothing is then written.
    """
    last = run.last()
    judged = run_state.state_of(run)
    progress = progress_of(run, is_live=False)
    try:
        folder = run.new_folder(last, _sealed_now(run))
    except FileExistsError:
        raise RequestError("held", "run %s has just been taken over by another process" % run.id) from None
    ended = _end_visible_leftovers(run)
    previous = None if last is None else _previous(run, last, judged, ended)
    try:
        changed = {} if runtime is None else {"runtime": runtime}
        job_id = run_state.probe_of(run).job_id(run)
        record = record_of(run, folder, "contact", previous=previous, by=by, job_id=job_id, **changed)
        write_durably(folder.attempt, strict_json.encode(record) + "\n")
        event = {
            "version": VERSION,
            "kind": "state",
            "time": time.time(),
            "values": {"state": state, "reason": reason, "ended": ended},
        }
        write_durably(folder.events, strict_json.encode(event) + "\n")
        if state in TERMINAL:
            forget_secrets(run)
        folder.write_state(state, reason, **progress._asdict(), **more)
    except OSError:
        folder.release()
        remove_folder(folder.path)  # a half-written record would hide the previous one
        raise
    if state in TERMINAL:
        with contextlib.suppress(OSError):  # a sweep removes the leases; an ended run's leases hold no cards
            lease.give_back(run)
    return folder


def _sealed_now(run: Run) -> List[str]:
    from ..store import checkpoints  # imported here: a launch settles nothing, and loading takes time

    return checkpoints.sealed_now(run)


def record_of(run: Run, folder: RecordFolder, kind: str, **more: Any) -> AttemptRecord:
    """Return the record of a folder that `serve` writes."""
    record = {
        "version": VERSION,
        "run": run.id,
        "kind": kind,
        "agent_folder": os.path.dirname(os.path.abspath(sys.argv[0])),
        "folder": folder.number,
        "time": time.time(),
        "place_id": run.place_id() or process.host_id(),
        "boot_id": process.boot_id(),
        "device": folder.device(),
        **more,
    }
    return cast("AttemptRecord", record)


def end_leftovers(run: Run, grace_s: float) -> List[process.ProcessProof]:
    """End the processes of this machine that carry the run's token; return the proofs."""
    token = read_text(run.token)
    return process.end(lambda: token_processes.with_token(token), "token", grace_s) if token else []


def _end_visible_leftovers(run: Run) -> List[process.ProcessProof]:
    """End the leftovers if `serve` sees the run's processes."""
    return end_leftovers(run, LEFTOVERS_GRACE_S) if run_state.probe_of(run).shows_processes else []


def _previous(
    run: Run, last: RecordFolder, judged: StateRecord, ended: List[process.ProcessProof]
) -> PreviousRecord:
    """Return the record of the folder before the contact: its state as found, and the processes ended."""
    found: PreviousRecord = {"folder": last.number, "state": last.read_state().get("state"), "ended": ended}
    if not run_state.probe_of(
        run
    ).shows_processes:  # without visible processes, the backend reports how the run ended
        found["evidence"] = judged.get("evidence")
    return found


def check_can_start(root: str) -> None:
    """Raise RequestError if this agent's file is only in memory: a run needs it for longer.

    This happens when the disk of the root did not accept the file.
    """
    if sys.argv[0].startswith("/proc/"):
        raise RequestError(
            "no-room", "%s: the disk does not take the agent's file, so nothing can start there" % root
        )


# stopping


def stop(run: Run, wish: str, *, by_force: bool = False) -> Optional[OSError]:
    """Write the wish `stop` or `cancel` and wake the agent; end a run that no process holds.

    `by_force` kills an agent that does not answer, and its training. If the run's container engine or service
    does not answer, the run may still be running. Only `cancel` ends such a run, as `stop-incomplete`; an
    agent that comes back later finds that end, or the wish, and leaves. If the run's lock is invisible from
    here, an agent may be at work, and will find the wish.

    Returns the disk's error if it refused the wish; the run is stopped anyway. Raises RequestError
    `not-cancelled` with the reason if the engine or service fails to end the run.
    """
    refusal = None
    run_probe = run_state.probe_of(run)
    run.open_up()
    found = run_state.state_of(run)
    if run_state.is_unwritten(found) and run.read_wish() == "run":  # the run had ended before this wish
        with contact(run) as is_ours:
            evidence = found.get("evidence")
            return (
                _settle_if_possible(run, found["state"], found["reason"], evidence=evidence)
                if is_ours
                else None
            )
    try:
        run.write_wish(wish)
    except OSError as error:
        refusal = error
    try:
        if refusal is not None:
            run_probe.end_without_wish(run, by_force=wish == "cancel")
        elif by_force:
            run_probe.end(run)
        else:
            run_probe.wake(run)
    except EndError as error:
        raise RequestError("not-cancelled", str(error)) from None
    with contact(run) as is_ours:
        judged = run_state.state_of(run)
        if not is_ours:
            return refusal
        if _may_live_elsewhere(run):  # the agent elsewhere finds the wish
            return refusal
        if judged["state"] in ("interrupted", "waiting") or run_state.is_unwritten(judged):
            evidence = judged.get("evidence") or {}
            kept = {key: evidence[key] for key in ("service", "disk") if key in evidence}
            said = {"evidence": kept} if kept else {}
            return _settle_if_possible(run, "stopped", str(WISHES[wish]), **said) or refusal
        if wish == "cancel" and run_state.is_silent(judged) and run_probe.sees_lock:
            evidence = judged.get("evidence")
            return _settle_if_possible(run, "stop-incomplete", "engine-silent", evidence=evidence) or refusal
    return refusal


def _may_live_elsewhere(run: Run) -> bool:
    from ..liveness import predecessor  # imported here: few requests ask for it

    return predecessor.needs_silence(run) is not None


def _settle_if_possible(run: Run, state: str, reason: Optional[str], **more: Any) -> Optional[OSError]:
    """Settle a run; return the disk's error if it refused.

    In that case the run has still ended, by its wish: its processes, secrets and leases are removed.
    """
    try:
        settle(run, state, reason, **more).release()
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        _end_visible_leftovers(run)
        for let_go in (forget_secrets, lease.give_back):
            with contextlib.suppress(OSError):  # a sweep removes them
                let_go(run)
        return error
    return None
