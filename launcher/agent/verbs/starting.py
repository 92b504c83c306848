"""Verbs that start a prepared or interrupted run: here under a keeper, or through the client."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, List, NamedTuple, Optional

from ..cards import lease
from ..liveness import run_state
from ..liveness.liveness import StartError
from ..record import secret
from ..record.rundir import SESSION_LIMIT, RecordFolder, Run
from ..record.strict_json import JsonObject
from ..serving import contact
from ..serving.container_place import container_place
from ..serving.requests import RequestError, RunId, RunRequest, VerbReply
from ..serving.session import ClientSession, Verb
from ..store import code_sync, worker_folder
from ..store.manifest import ShippingError
from ..store.secret_end import forget_secrets

if TYPE_CHECKING:
    from ..record.run_records import StateRecord

START_S = 20.0
POLL_S = 0.01
UNSETTLED = "unsettled"
"""The code of a start whose outcome is unknown."""


def start(session: ClientSession, request: RunRequest, _payload: bytes) -> VerbReply:
    """Start a prepared run. Return when its agent has taken over, or is certain to."""
    run = session.prepared_run(request.run)
    folder = session.prepared.pop(run.id)
    session.handed_over[run.id] = folder  # a run that may have begun is not removed
    try:
        _start(run, folder)
    except RequestError as error:
        if error.code != UNSETTLED and not run.has_folder_after(folder):
            session.prepared[run.id] = session.handed_over.pop(run.id)
        raise
    del session.handed_over[run.id]
    session.release_cards(run.id)
    folder.release()
    _settle(session, run)
    return VerbReply({"run": run.id, "job_id": run_state.probe_of(run).job_id(run)})


def _start(run: Run, folder: RecordFolder) -> None:
    """Ask the run's runtime to start it after a folder that this process holds. Raises RequestError."""
    try:
        run_state.probe_of(run).start(run, folder.number)
    except StartError as error:
        raise RequestError(error.code, str(error)) from None


def hand_over(session: ClientSession, request: RunRequest, _payload: bytes) -> VerbReply:
    """Keep a prepared run when the connection closes, because the client starts it next, in a container."""
    run = session.prepared_run(request.run)
    session.handed_over[run.id] = session.prepared.pop(run.id)
    _settle(session, run)
    return VerbReply({})


def take_back(session: ClientSession, request: RunRequest, _payload: bytes) -> VerbReply:
    """Take back a handed-over run that never began and whose container is removed.

    Closing the connection then removes the run. `taken` says whether that is so; it is also true for a run that
    was never handed over. A run with an attempt's folder has begun, regardless of other evidence.
    """
    run = session.run(request.run)
    run_probe = run_state.probe_of(run)
    run_probe.forget(run)
    folder = session.handed_over.get(run.id)
    if folder is not None and run_probe.is_removed(run) and not run.has_folder_after(folder):
        session.prepared[run.id] = session.handed_over.pop(run.id)
    return VerbReply({"taken": run.id in session.prepared})


class Await(NamedTuple):
    """A run that was handed over, and how long to wait for its agent."""

    run: RunId
    wait_s: float = START_S


def await_agent(session: ClientSession, request: Await, _payload: bytes) -> VerbReply:
    """Wait for the agent of a run that was handed over. Return whether it has taken over.

    If this host cannot see the agent's lock, return true at once.
    """
    run = session.run(request.run)
    folder = session.handed_over.get(run.id)
    if folder is None:
        raise RequestError("not-prepared", "run %s was not handed over on this connection" % run.id)
    deadline = time.monotonic() + min(request.wait_s, START_S)
    sees_lock = run_state.probe_of(run).sees_lock
    while sees_lock and not run.is_taken_over(folder.number):
        if time.monotonic() >= deadline or session.connection.has_input(POLL_S):
            return VerbReply({"came": False})
    del session.handed_over[run.id]
    session.release_cards(run.id)
    folder.release()
    return VerbReply({"came": True})


def place(session: ClientSession, request: RunRequest, _payload: bytes) -> VerbReply:
    """Return the files and settings that a container of the run needs."""
    return VerbReply({"place": container_place(session, session.run(request.run))})


class Resume(NamedTuple):
    """A run to continue, and the requesting client's user and machine, which other clients can show."""

    run: RunId
    by: Optional[str] = None


def resume(session: ClientSession, request: Resume, payload: bytes) -> VerbReply:
    """Start an interrupted or waiting run again. Its remaining processes are ended first, if proven to be its own.

    The payload is empty, or holds the secrets of the run (secret.py), which replace those on the host. While
    secrets are missing, the answer names them, and the run waits. If only silence can prove that the last agent
    is dead, the answer says how much longer it must stay silent, and the client asks again. The run's cards are
    leased again; the run waits if another run has them. A run that the client starts is handed over: the answer
    has its place (see `place`), `is_new` says that it needs a new container, and `await` waits for its agent.
    If the code never arrived, because the client and `serve` died during the upload, the run has failed.
    """
    run = session.run(request.run)
    contact.check_is_here(run)
    contact.check_can_start(session.root)
    worker_folder.unpack(sys.argv[0])
    with contact.contact(run) as is_ours:
        state = run_state.state_of(run)
        if is_ours and state["state"] in ("interrupted", "waiting"):
            left_s = _silence_left_s(session, run)
            if left_s is not None:
                return VerbReply({"state": state["state"], "silence_left_s": left_s})
            if payload:
                _replace_secrets(run, payload)
            return _restart(session, run, state, request.by)
    asked = (folder.read_attempt().get("by") for folder in run.newest())
    by = next(filter(None, asked), None)
    return VerbReply({"state": run_state.state_of(run)["state"], "is_ours": False, "by": by})


def _replace_secrets(run: Run, payload: bytes) -> None:
    forget_secrets(run)
    try:
        secret.write(run, payload)
    except ValueError as error:
        raise RequestError("bad-secrets", str(error)) from None


def _silence_left_s(session: ClientSession, run: Run) -> Optional[float]:
    """Return how much longer a run's last agent must stay silent to count as dead; None if it is dead.

    Raises RequestError if it is alive.
    """
    from ..liveness import predecessor  # a launch does not need it

    folder = predecessor.needs_silence(run)
    if folder is None:
        return None
    silence = session.silences.setdefault(run.id, predecessor.SilenceWatch(run, folder))
    is_dead = silence.look()
    if is_dead is None:
        return silence.left_s
    del session.silences[run.id]
    if not is_dead:
        raise RequestError(
            "alive", "run %s is alive: its agent, on another machine, gave a sign of life" % run.id
        )
    return None


def _restart(session: ClientSession, run: Run, judged: StateRecord, by: Optional[str]) -> VerbReply:
    """Start a run that no process holds, or let it wait and return the missing secrets or the cards' holders."""
    waited_for = judged.get("reason") if judged["state"] == "waiting" else None
    why = SESSION_LIMIT if judged.get("reason") == SESSION_LIMIT else "agent-lost"
    if not os.path.isdir(run.code):
        contact.settle(run, "failed", "never-started").release()
        return VerbReply({"state": run_state.state_of(run)["state"]})
    lost = _look_after_crash(run)
    if lost:
        contact.settle(run, "failed", lost["class"], evidence=lost).release()
        return VerbReply({"state": run_state.state_of(run)["state"]})
    hopeless = run_state.probe_of(run).hopeless(run)
    if hopeless is not None:
        state, reason, evidence = hopeless
        contact.settle(run, state, reason, evidence=evidence).release()
        return VerbReply({"state": run_state.state_of(run)["state"]})
    missing = sorted(set(run.read_plan().get("secrets") or ()) - set(secret.read(run)))
    if missing:
        if waited_for is None:
            evidence = {"secrets": "missing: " + ", ".join(missing)}
            contact.settle(run, "waiting", "secret", evidence=evidence, by=by).release()
        return VerbReply({"state": "waiting", "secrets": missing})
    before = run.cards()
    busy = _lease_again(session, run)
    if busy:
        if waited_for is None:
            contact.settle(run, "waiting", "card", evidence=lease.evidence(busy), by=by).release()
        return VerbReply({"state": "waiting", "busy": [card._asdict() for card in busy]})
    runtime = run_state.runtime_now(run)
    gpus = session.cards[run.id].gpus if run.id in session.cards else before
    if runtime.get("gpus") is not None:
        runtime = {**runtime, "gpus": gpus}
    answer = _answer_failure(run, waited_for) if waited_for is not None else {}
    folder = contact.settle(run, "resuming", waited_for or why, by=by, runtime=runtime, **answer)
    if run_state.probe_of(run).is_started_by_client:
        session.handed_over[run.id] = folder
        is_new = gpus != before or waited_for in ("image", "client")
        place = container_place(session, run)
        return VerbReply({"state": "resuming", "place": place, "gpus": gpus, "is_new": is_new})
    try:
        _start(run, folder)
    except RequestError as error:
        if waited_for is not None and error.code != UNSETTLED:  # it waits as before
            folder.write_state("waiting", waited_for, evidence={"service": str(error)})
        raise
    session.release_cards(run.id)
    folder.release()
    return VerbReply({"state": run_state.state_of(run)["state"]})


def _settle(session: ClientSession, run: Run) -> None:
    """Write the complete code of a run to the disk in the background."""
    session.manifests.pop(run.id, None)
    code_sync.start_settling(run)


def _look_after_crash(run: Run) -> JsonObject:
    """Repair a run's files that the disk may have lost when this host stopped.

    Returns the failure if that is impossible, else an empty object. In most runtimes the agent does this; an
    agent in a container has no access to the store. Raises RequestError while `gc` runs.
    """
    run_probe = run_state.probe_of(run)
    if run_probe.is_in_image and code_sync.is_doubtful(run):
        try:
            mended = code_sync.mend(run, lambda: False)
        except ShippingError as error:
            raise RequestError("held", str(error)) from None
        return code_sync.words_of(run, mended) if mended is not None and mended.lost else {}
    return {}


def _answer_failure(run: Run, waited_for: str) -> JsonObject:
    """Return the record of the remedy if a run has waited after a failure; empty if it had not failed."""
    from ..diagnosis import remedy  # few runs wait, and loading it would delay every launch
    from ..store import checkpoints
    from .summary import SLURM

    failure = remedy.in_force(run.newest_records()).failure
    if failure is None:
        return {}
    checkpoint = checkpoints.newest(run.checkpoints)
    is_job = run_state.runtime_now(run).get("kind") == SLURM
    return {"remedy": remedy.client_remedy(failure, waited_for, checkpoint, is_job=is_job).record()}


def _lease_again(session: ClientSession, run: Run) -> List[lease.Busy]:
    """Lease cards for a run that starts again. Return their holders if too few are free."""
    taken = lease.take_again(run, wait_s=lease.LEAVING_S)
    if taken.gpus:
        session.cards[run.id] = taken
        return []
    return taken.busy


VERBS = {
    "start": Verb(RunRequest, start),
    "hand_over": Verb(RunRequest, hand_over),
    "take_back": Verb(RunRequest, take_back),
    "await": Verb(Await, await_agent),
    "place": Verb(RunRequest, place),
    "resume": Verb(Resume, resume),
}
