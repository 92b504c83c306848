"""What a client's contact does to a run: judge one that nobody holds, end it.

A contact is on record as a numbered folder of kind `contact`, written while its lock keeps other clients away.
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
from ..record.rundir import TERMINAL, VERSION, WISHES, Folder, Run
from ..store.secret_end import forget_secrets
from ..system import bearers, process
from .requests import RequestError

if TYPE_CHECKING:
    from ..record.run_records import AttemptRecord, PreviousRecord, RecordedRuntime, StateRecord

CONTACT_S = 15.0  # a sweep may be ending what is left of the run
LEFTOVERS_GRACE_S = 5.0


# judging a run that nobody holds


def check_is_here(run: Run) -> None:
    """Raise RequestError for a run whose record was made on another host, as in a home that is shared."""
    if not run_state.probe_of(run).is_here(run):
        raise RequestError("other-host", "run %s belongs to another host (id %s)" % (run.id, run.place_id()))


@contextlib.contextmanager
def contact(run: Run) -> Iterator[bool]:
    """Let one client at a time judge a run that nobody holds; yield whether it is this one."""
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
) -> Folder:
    """End what is left of a run that nobody holds, and write its new state; return the contact's folder, still held.

    `by` is the client that asked for it, `runtime` how the run goes on if that has changed. Raises OSError, with nothing written, if the disk refuses.
    """
    last = run.last()
    judged = run_state.state_of(run)
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
        folder.write_state(state, reason, **more)
    except OSError:
        folder.release()
        remove_folder(folder.path)  # half a record would hide the last one
        raise
    if state in TERMINAL:
        with contextlib.suppress(OSError):  # a sweep removes them, and they count as free by the run's state
            lease.give_back(run)
    return folder


def _sealed_now(run: Run) -> List[str]:
    from ..store import late_seals  # a launch settles nothing, and would wait for it to load

    return late_seals.sealed_now(run)


def record_of(run: Run, folder: Folder, kind: str, **more: Any) -> AttemptRecord:
    """Return what `serve` puts on record in a folder that it writes."""
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
    return process.end(lambda: bearers.with_token(token), "token", grace_s) if token else []


def _end_visible_leftovers(run: Run) -> List[process.ProcessProof]:
    """Do so if a client sees them from here."""
    return end_leftovers(run, LEFTOVERS_GRACE_S) if run_state.probe_of(run).shows_processes else []


def _previous(
    run: Run, last: Folder, judged: StateRecord, ended: List[process.ProcessProof]
) -> PreviousRecord:
    """Return what is on record of the folder before the contact: how it was found, and what was ended of it."""
    found: PreviousRecord = {"folder": last.number, "state": last.read_state().get("state"), "ended": ended}
    if not run_state.probe_of(
        run
    ).shows_processes:  # instead of processes, what keeps the run says how it ended
        found["evidence"] = judged.get("evidence")
    return found


def check_can_start(root: str) -> None:
    """Raise RequestError if this agent's file is in memory, because the root's disk did not take it: a run needs it for longer."""
    if sys.argv[0].startswith("/proc/"):
        raise RequestError(
            "no-room", "%s: the disk does not take the agent's file, so nothing can start there" % root
        )


# stopping


def stop(run: Run, wish: str, *, by_force: bool = False) -> Optional[OSError]:
    """Write the wish `stop` or `cancel` and wake the agent; a run that nobody holds is ended here.

    `by_force` kills an agent that does not answer, and its training.
    A run whose fate is silent may still be running. Only `cancel` ends it, as `stop-incomplete`; an agent that comes
    back later finds that end, or the wish, and leaves. Where no lock is seen an agent may be at work: it finds the wish. What a disk refuses is returned: the run is stopped all the same.
    Raises RequestError `not-cancelled` with the words of what keeps the run and does not end it.
    """
    refusal = None
    run_fate = run_state.probe_of(run)
    run.open_up()
    found = run_state.state_of(run)
    if run_state.is_unwritten(found) and run.read_wish() == "run":  # it had ended before anybody wished so
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
            run_fate.end_without_wish(run, by_force=wish == "cancel")
        elif by_force:
            run_fate.end(run)
        else:
            run_fate.wake(run)
    except EndError as error:
        raise RequestError("not-cancelled", str(error)) from None
    with contact(run) as is_ours:
        judged = run_state.state_of(run)
        if not is_ours:
            return refusal
        if _may_live_elsewhere(run):  # the wish reaches it there
            return refusal
        if judged["state"] in ("interrupted", "waiting") or run_state.is_unwritten(judged):
            evidence = judged.get("evidence") or {}
            said = {"evidence": {"service": evidence["service"]}} if "service" in evidence else {}
            return _settle_if_possible(run, "stopped", str(WISHES[wish]), **said) or refusal
        if wish == "cancel" and run_state.is_silent(judged) and run_fate.sees_lock:
            evidence = judged.get("evidence")
            return _settle_if_possible(run, "stop-incomplete", "engine-silent", evidence=evidence) or refusal
    return refusal


def _may_live_elsewhere(run: Run) -> bool:
    from ..liveness import predecessor  # as late_seals

    return predecessor.needs_silence(run) is not None


def _settle_if_possible(run: Run, state: str, reason: Optional[str], **more: Any) -> Optional[OSError]:
    """Settle a run; return what the disk refused. By its wish it has ended then, and nothing of it is left either."""
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
