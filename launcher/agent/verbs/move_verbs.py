"""Verbs that move a run to another host, where a successor run continues it.

The old host answers whether the run can be moved and where it has been moved to, and sends its code and data
as they were uploaded. The new host takes a checkpoint and checks it against its manifest. The host builds
every path from names that it has checked.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, List, Mapping, NamedTuple, Optional

from ..host import garbage
from ..liveness import run_state
from ..record import cancelled_starts, strict_json
from ..record.files import read_json, write_durably
from ..record.rundir import TERMINAL, Run
from ..record.safe_open import open_regular
from ..serving import contact
from ..serving.requests import NoArguments, RequestError, RunId, RunRequest, VerbReply, read_object
from ..serving.session import ClientSession, OfferedCheckpoint, Verb
from ..store import inheritance, shipping
from ..store.manifest import check, read_manifest

if TYPE_CHECKING:
    from ..record.run_records import ParentRecord

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


# on the old host


def outlook(session: ClientSession, request: RunRequest, _payload: bytes) -> VerbReply:
    """Return whether a run's script can resume, the run's move record, and whether the run is half-made."""
    run = session.run(request.run)
    return VerbReply(
        {
            "resumes": inheritance.resumes(run),
            "moved": read_json(run.moved) or None,
            "half_made": garbage.is_half_made(run),
        }
    )


class Move(NamedTuple):
    """A run that has ended, and the run that continues it on another host: its id, host and root.

    `instead` lists successors that never began. If the recorded successor is one of them, the new one replaces
    it.
    """

    run: RunId
    to: RunId
    host: str = ""
    root: str = ""
    instead: Optional[List[str]] = None


def move(session: ClientSession, request: Move, _payload: bytes) -> VerbReply:
    """Record that another run continues this one on another host. Return the record.

    A record of an earlier move stands, unless its run is in `instead`. From then on only the recorded run may
    continue this one. Raises RequestError if the run has not ended or is still held.
    """
    run = session.run(request.run)
    contact.check_is_here(run)
    with contact.contact(run) as is_ours:
        if not is_ours:
            raise RequestError("held", "another client is working on run %s: try again" % run.id)
        state = run_state.state_of(run)
        if state["state"] not in TERMINAL or run_state.is_unwritten(state):
            raise RequestError("not-ended", "run %s is %s" % (run.id, state["state"]))
        try:
            inheritance.check_ended(run)
        except inheritance.ParentError as error:
            raise RequestError(error.code, str(error)) from None
        known = read_json(run.moved)
        if not known or known.get("run") in (request.instead or ()):
            known = {"run": request.to, "host": request.host, "root": request.root}
            write_durably(run.moved, strict_json.encode(known) + "\n")
    return VerbReply({"moved": known})


def tree(session: ClientSession, request: RunRequest, _payload: bytes) -> VerbReply:
    """Return the manifest of a run's code and data as they were uploaded."""
    run = session.run(request.run)
    return VerbReply({}, strict_json.encode(read_manifest(run.manifest)).encode())


class Contents(NamedTuple):
    """A run, and the SHA-256 of uploaded files to send back."""

    run: RunId
    files: Optional[List[str]] = None


def contents(session: ClientSession, request: Contents, _payload: bytes) -> VerbReply:
    """Send uploaded files of a run, one after another.

    Raises RequestError `lost` if a file is missing.
    """
    run = session.run(request.run)
    manifest = read_manifest(run.manifest)
    sizes = {entry["sha256"]: entry["size"] for entry in manifest.values() if "sha256" in entry}
    wanted = request.files or []
    if not set(wanted) <= set(sizes):
        raise RequestError("not-offered", "run %s: a requested file was never sent" % run.id)
    with session.store.shared():
        missing = [sha256 for sha256 in wanted if not session.store.holds(sha256, sizes[sha256])]
        found = inheritance.find_in_trees(run, manifest, missing)
        stream = shipping.ChunkWriter(session.connection)
        for sha256 in wanted:
            path = found[sha256][0] if sha256 in found else session.store.file(sha256)
            _send(stream, path, sizes[sha256])
        stream.finish()
    return VerbReply({})


def _send(stream: shipping.ChunkWriter, path: str, size: int) -> None:
    try:
        descriptor = open_regular(path, os.O_RDONLY)
        try:
            is_whole = shipping.send_file(stream, descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RequestError("lost", "%s: %s" % (os.path.basename(path), error.strerror)) from None
    if not is_whole:
        raise RequestError("lost", "%s is shorter than it was" % os.path.basename(path))


# on the new host


def lacking(session: ClientSession, _request: NoArguments, payload: bytes) -> VerbReply:
    """Return the files of a manifest (the payload) that this host lacks. Changes nothing."""
    manifest = read_object(payload, "the manifest")
    check(manifest)
    with session.store.shared():
        return VerbReply({"missing": session.store.missing(manifest)})


def forgo(session: ClientSession, request: RunRequest, _payload: bytes) -> VerbReply:
    """Make sure that a run never begins here, and remove it if it is half-made.

    `begun` is true if the run had already begun.
    """
    run = Run(session.path_of(request.run))
    cancelled_starts.mark(session.root, run.id)
    is_gone = not os.path.isdir(run.path) or (bool(run.numbers()) and garbage.remove_half_made(run))
    return VerbReply({"begun": not is_gone})


class OfferCheckpoint(NamedTuple):
    """A prepared run, the run that it continues, and the name of that run's checkpoint."""

    run: RunId
    parent: RunId
    name: str = ""


def offer_checkpoint(session: ClientSession, request: OfferCheckpoint, payload: bytes) -> VerbReply:
    """Take a checkpoint's manifest (the payload). Return the files that must be sent."""
    run = session.prepared_run(request.run)
    if not _NAME.fullmatch(request.name):
        raise RequestError("bad-checkpoint", "%r is not a valid name of a checkpoint" % request.name)
    manifest = read_object(payload, "the manifest")
    files, step = manifest.get("files"), manifest.get("step")
    if not isinstance(files, dict) or not all(map(_is_file, files.values())) or not _is_size(step):
        raise RequestError("bad-checkpoint", "the manifest of %s is invalid" % request.name)
    for path in files:
        if "\0" in path or inheritance.leads_out(path):
            raise RequestError("bad-checkpoint", "the manifest of %s names %r" % (request.name, path))
    offered = OfferedCheckpoint(request.parent, request.name, int(manifest["step"]), files, payload)
    session.checkpoints[run.id] = offered
    sizes = offered.sizes
    return VerbReply({"missing": sorted(one for one in sizes if not session.store.holds(one, sizes[one]))})


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_file(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and _is_size(entry.get("size"))
        and isinstance(entry.get("sha256"), str)
        and _SHA256.fullmatch(entry["sha256"]) is not None
    )


class ShipCheckpoint(NamedTuple):
    """A prepared run, and the SHA-256 of the files that follow, in their order."""

    run: RunId
    files: Optional[List[str]] = None


def ship_checkpoint(session: ClientSession, request: ShipCheckpoint, _payload: bytes) -> VerbReply:
    """Take the missing files of the offered checkpoint and publish it. The run continues from it."""
    run = session.prepared_run(request.run)
    stream = shipping.ChunkReader(session.connection)
    try:
        if run.id not in session.checkpoints:
            raise RequestError("not-offered", "run %s: no checkpoint was offered" % run.id)
        offered = session.checkpoints[run.id]
        sent, sizes = request.files or [], offered.sizes
        if not set(sent) <= set(sizes):
            raise RequestError("not-offered", "run %s: a file was sent that was not offered" % run.id)
        with session.store.shared():
            session.store.receive(stream, [(sha256, sizes[sha256]) for sha256 in sent])
            _put(session, run, offered)
    finally:
        stream.skip_rest()  # the client sends the whole stream, even after a refusal
    origin: ParentRecord = {"run": offered.parent, "checkpoint": offered.name, "step": offered.step}
    run.write_prepared(session.prepared[run.id], {**run.prepared(), "parent": origin, "changes": {}})
    return VerbReply({"parent": origin})


def _put(session: ClientSession, run: Run, offered: OfferedCheckpoint) -> None:
    """Copy a checkpoint from the store, check it, and publish it under its name."""

    def put(name: str, entry: Mapping[str, Any], copy: str) -> None:
        inheritance.copy_checked(session.store.file(entry["sha256"]), copy, entry["sha256"])
        if os.path.getsize(copy) != entry["size"]:
            raise RequestError("bad-checkpoint", "%s: %s has another size" % (offered.name, name))

    def put_manifest(copy: str) -> None:
        write_durably(copy, offered.manifest)

    os.makedirs(run.checkpoints, exist_ok=True)
    try:
        inheritance.publish(run.checkpoints.below(offered.name), offered.files, put, put_manifest)
    except inheritance.ParentError as error:
        raise RequestError("bad-checkpoint", "%s: %s" % (offered.name, error)) from None


VERBS = {
    "outlook": Verb(RunRequest, outlook),
    "move": Verb(Move, move),
    "tree": Verb(RunRequest, tree),
    "contents": Verb(Contents, contents),
    "lacking": Verb(NoArguments, lacking),
    "forgo": Verb(RunRequest, forgo),
    "offer_checkpoint": Verb(OfferCheckpoint, offer_checkpoint),
    "ship_checkpoint": Verb(ShipCheckpoint, ship_checkpoint),
}
