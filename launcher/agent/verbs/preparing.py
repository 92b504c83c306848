"""Verbs that prepare a run: its folder and cards, code and data, its parent's checkpoint, and its secrets."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Optional, cast

from ..cards import lease
from ..host import evidence_import, garbage
from ..host.probe_host import interpreter_path
from ..liveness import liveness, ownership, run_state
from ..making import environment_build
from ..record import cancelled_starts, secret
from ..record.engine_record import EngineRecord
from ..record.files import read_json, sync_folder, write_durably
from ..record.locks import Lock
from ..record.rundir import ONE_MACHINE, RENTED, Run, rent_in
from ..record.safe_open import open_regular
from ..serving import contact
from ..serving.container_place import container_place
from ..serving.requests import NoArguments, RequestError, RunId, RunRequest, VerbReply, read_object
from ..serving.session import ClientSession, Verb
from ..store import shipping, worker_folder
from ..store.manifest import ChangedFileError, check, read_manifest, shared_modes_of, sizes_of

if TYPE_CHECKING:
    from ..record.run_records import PlanRecord, RecordedRuntime

# create


class Create(NamedTuple):
    """A new run: its runtime kind, the host's environment or the engine, and the cards that it may use.

    The run gets as many of `gpus` as `cards` says, or all of them. It may move to a card of `any_of` later. A
    client that sets `queues` asks again while the cards are busy.
    """

    run: RunId
    runtime: str = liveness.NATIVE
    env: Optional[str] = None
    engine: Optional[EngineRecord] = None
    gpus: Optional[List[str]] = None
    cards: Optional[int] = None
    any_of: Optional[List[str]] = None
    queues: bool = False


def create(session: ClientSession, request: Create, payload: bytes) -> VerbReply:
    """Make a run's folder with its plan (the payload), and its first numbered folder, locked by this process."""
    if not liveness.is_known(request.runtime):
        raise RequestError("bad-runtime", "runtime: %r is not known to this agent" % request.runtime)
    plan = cast("PlanRecord", read_object(payload, "the plan"))
    place_id = liveness.probe_of(request.runtime).place_id()
    if not place_id:
        words = "this machine cannot find out which host or cluster keeps runs of %s" % request.runtime
        raise RequestError("no-place", words)
    contact.check_can_start(session.root)
    worker_folder.unpack(sys.argv[0])
    run = Run(session.path_of(request.run))
    try:
        run.make()
    except FileExistsError:
        raise RequestError("run-exists", "run %s exists already" % run.id) from None
    if cancelled_starts.is_marked(
        session.root, run.id
    ):  # checked after the folder is made, because a process that sets the mark looks for the folder afterwards
        shutil.rmtree(run.path, ignore_errors=True)
        raise RequestError("forgone", "run %s continues on another host" % run.id)
    folder = run.new_folder()
    session.prepared[run.id] = folder
    _make_locks(session, run)
    gpus = _take_cards(session, run, request)
    write_durably(run.plan, payload)
    run.write_wish("run")
    write_durably(run.token, ownership.new_token(run), 0o600)
    runtime = _runtime(session, request, plan, gpus)
    record = contact.record_of(run, folder, "prepare", place_id=place_id, runtime=runtime, locks=ONE_MACHINE)
    run.write_prepared(folder, record)
    folder.write_state("preparing")
    for path in (run.record, run.path, os.path.dirname(run.path)):
        sync_folder(path)
    if not liveness.probe_of(request.runtime).sees_host:
        evidence_import.expect(run)
    return VerbReply({"run": run.id, "place": container_place(session, run), "gpus": gpus})


def _make_locks(session: ClientSession, run: Run) -> None:
    """Create the lock files that stopping and removing a run need: a full disk may lack room for them later."""
    for path in (run.contact_lock, garbage.lock_of_removals(session.root), session.store.lock):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.close(open_regular(path, os.O_RDWR | os.O_CREAT))


def _runtime(
    session: ClientSession, request: Create, plan: PlanRecord, gpus: Optional[List[str]]
) -> RecordedRuntime:
    """Return the runtime record of the run."""
    run_probe = liveness.probe_of(request.runtime)
    return {
        "kind": request.runtime,
        "interpreter": None if run_probe.is_in_image else _interpreter(session, request, plan),
        "engine": request.engine,
        "gpus": gpus,
        "any_of": request.any_of,
        "paths": _host_paths(plan),
        **_rent(session),
    }


def _rent(session: ClientSession) -> RecordedRuntime:
    """Return the end of this machine's rental by the machine's clocks; empty if it is not rented."""
    rent = rent_in(read_json(os.path.join(session.root, RENTED)))
    return cast("RecordedRuntime", {f"rented_{name}": value for name, value in rent.items()})


def _interpreter(session: ClientSession, request: Create, plan: PlanRecord) -> str:
    """Return the interpreter of the environment that was made for the plan, or the one of `env`."""
    made = plan.get("environment")
    if made is None:
        return interpreter_path(request.env)
    try:
        return environment_build.python_of(environment_build.path_of(session.root, made.get("name")))
    except environment_build.EnvironmentBuildError as error:
        raise RequestError("bad-environment", str(error)) from None


def _take_cards(session: ClientSession, run: Run, request: Create) -> Optional[List[str]]:
    """Lease a new run's cards. Remove the run and raise RequestError if too few are free.

    A client that sets `queues` and asks again keeps its place in the queue.
    """
    if not request.gpus:
        return request.gpus
    taken = lease.take(run, request.gpus, request.cards, in_line=True, ticket=session.ticket)
    if taken.gpus or not request.queues:
        session.leave_queue()
    else:
        session.ticket = lease.draw(session.root, request.gpus, request.cards, session.ticket)
    if not taken.gpus:
        session.prepared.pop(run.id).release()
        shutil.rmtree(run.path, ignore_errors=True)
        words = ", ".join(card.words for card in taken.busy)
        raise RequestError("card-leased", words, {"busy": [card._asdict() for card in taken.busy]})
    session.cards[run.id] = taken
    return taken.gpus


def _host_paths(plan: PlanRecord) -> Dict[str, str]:
    """Return the absolute paths of a plan's `host:` sources, by their written form.

    They are expanded here, because a container has another home. Raises RequestError `no-source` if one does
    not exist.
    """
    sources = [plan.get("model"), plan.get("teacher"), *(plan.get("data") or {}).values()]
    written = [source["value"] for source in sources if source is not None and source.get("kind") == "host"]
    paths = {text: os.path.abspath(os.path.expanduser(text)) for text in written}
    for path in paths.values():
        if not os.path.exists(path):
            raise RequestError("no-source", "host:%s does not exist on this host" % path)
    return paths


def check_sources(_session: ClientSession, _request: NoArguments, payload: bytes) -> VerbReply:
    """Check that all `host:` sources of a plan (the payload) exist. Raises RequestError `no-source`."""
    _host_paths(cast("PlanRecord", read_object(payload, "the plan")))
    return VerbReply({})


# code and data


def offer(session: ClientSession, request: RunRequest, payload: bytes) -> VerbReply:
    """Take a tree's manifest (the payload).

    Put code/ and data/ in place, or return the files that must be sent first.
    """
    run = session.prepared_run(request.run)
    manifest = read_object(payload, "the manifest")
    check(manifest)
    session.manifests[run.id] = manifest
    with session.store.shared():
        return VerbReply({"missing": session.store.place(manifest, run, payload)})


class Ship(NamedTuple):
    """A prepared run, and the SHA-256 of the files that follow, in their order."""

    run: RunId
    files: Optional[List[str]] = None


def ship(session: ClientSession, request: Ship, _payload: bytes) -> VerbReply:
    """Take the files that the last answer listed as missing, and put the tree in place.

    Raises RequestError `changed` for a file whose contents are not those that were offered.
    """
    run = session.prepared_run(request.run)
    manifest = session.manifests.get(run.id, {})
    stream = shipping.ChunkReader(session.connection)
    try:
        with session.store.shared():
            sizes = sizes_of(manifest)
            files = request.files or []
            if not set(files) <= set(sizes):
                raise RequestError("not-offered", "run %s: a file was sent that was not offered" % run.id)
            requested = [(sha256, sizes[sha256]) for sha256 in files]
            session.store.receive(stream, requested, shared_modes_of(manifest))
            return VerbReply({"missing": session.store.place(manifest, run)})
    except ChangedFileError as error:
        raise RequestError("changed", str(error), {"sha256": error.sha256}) from None
    finally:
        stream.skip_rest()  # the client sends the whole stream, even after a refusal


class Inherit(NamedTuple):
    """A prepared run, the run that it continues, and the plan keys that the user changed."""

    run: RunId
    parent: RunId
    asked: Optional[List[str]] = None


def inherit(session: ClientSession, request: Inherit, _payload: bytes) -> VerbReply:
    """Give a prepared run its parent's code, data and newest intact checkpoint; see inheritance.py.

    This replaces an upload from the client: files that are on this host are not sent again.
    """
    from ..store import inheritance  # few clients need it, and loading it would delay all the others

    run = session.prepared_run(request.run)
    parent = session.run(request.parent)
    contact.check_is_here(parent)
    with _unjudged(parent):
        try:
            values = inheritance.inherit(
                parent, run, session.prepared[run.id], session.store, request.asked or []
            )
        except inheritance.ParentError as error:
            raise RequestError(error.code, str(error)) from None
    session.manifests[run.id] = read_manifest(run.manifest)
    return VerbReply(values)


@contextlib.contextmanager
def _unjudged(parent: Run) -> Iterator[None]:
    """Keep other clients from changing a parent's state. Several runs may continue it at once.

    Raises RequestError.
    """
    lock = Lock.take(parent.contact_lock, shared=True)
    if lock is None:
        raise RequestError("held", "another client is working on run %s: try again" % parent.id)
    try:
        run_state.probe_of(parent).forget(parent)
        yield
    finally:
        lock.release()


# secrets


def take_secrets(session: ClientSession, request: RunRequest, payload: bytes) -> VerbReply:
    """Store the secrets (the payload) beside the plan of a prepared run; see secret.py."""
    run = session.prepared_run(request.run)
    try:
        secret.write(run, payload)
    except ValueError as error:
        raise RequestError("bad-secrets", str(error)) from None
    return VerbReply({})


VERBS = {
    "create": Verb(Create, create),
    "sources": Verb(NoArguments, check_sources),
    "offer": Verb(RunRequest, offer),
    "ship": Verb(Ship, ship),
    "inherit": Verb(Inherit, inherit),
    "secrets": Verb(RunRequest, take_secrets),
}
