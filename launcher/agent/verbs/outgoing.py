"""Verbs that send a run's outputs to a client: the list of its files, their digests, and their bytes.

The list and the digests are streams of JSON lines, one per file, so their number affects neither a deadline
nor the memory of client and host. File contents follow one another without separators: the client knows each
length from the digest lines.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Tuple

from ..record import strict_json
from ..record.rundir import Run
from ..serving.requests import RequestError, RunId, RunRequest, VerbReply
from ..serving.session import ClientSession, Verb
from ..store import checkpoints
from ..store.outputs import OutputDigests, OutputScan, open_output
from ..store.shipping import ChunkWriter, LineWriter, send_file

if TYPE_CHECKING:
    from ..store.inheritance import DamagedCheckpoint

MAX_REASONS = 100
MAX_NAMED = 20
WHOLE = "whole"


class OutputsRequest(NamedTuple):
    """A run, and whether to list files that the job's patterns exclude too."""

    run: RunId
    all: bool = False


def outputs(session: ClientSession, request: OutputsRequest, _payload: bytes) -> VerbReply:
    """List a run's outputs, one line [path, kind, bytes, modification time in ns] per file."""
    run = session.run(request.run)
    lines = LineWriter(session.connection)
    digests = OutputDigests(run, lines.advance)
    scan = OutputScan(run, digests, matches_all=request.all)
    for found in scan.outputs():
        lines.put([found.path, found.kind, found.size, found.mark[1]])
    digests.save()
    lines.finish()
    return VerbReply({"left_out": reasons(scan.left_out), "now_ns": time.time_ns()})


def manifest(session: ClientSession, request: RunRequest, payload: bytes) -> VerbReply:
    """Hash the files whose paths are the payload.

    Sends one line [path, bytes, modification time in ns, SHA-256] per file.
    """
    run = session.run(request.run)
    paths = _list(payload, str)
    lines = LineWriter(session.connection)
    digests = OutputDigests(run, lines.advance)
    left_out: Dict[str, str] = {}
    for path in paths:
        try:
            descriptor, status = open_output(run, path)
            try:
                digest = digests.of(path, descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            left_out[path] = str(error.strerror)
        else:
            lines.put([path, status.st_size, status.st_mtime_ns, digest])
    digests.save()
    lines.finish()
    return VerbReply({"left_out": reasons(left_out)})


class Checkpoint(NamedTuple):
    """A run, and which of its sealed checkpoints to send.

    `which` is `last`, `best`, a step, or `whole`: the newest that is intact, found by reading its files.
    """

    run: RunId
    which: str = "last"


def checkpoint(session: ClientSession, request: Checkpoint, _payload: bytes) -> VerbReply:
    """Name a sealed checkpoint and send its manifest.

    Raises RequestError `no-checkpoint` if it is missing, and `changed` if its files cannot be read.
    """
    run = session.run(request.run)
    path, passed_over = _newest_whole(run) if request.which == WHOLE else (_picked(run, request.which), [])
    name = os.path.basename(path)
    try:
        manifest, files = checkpoints.read_manifest(path)
        changed = {
            file: os.stat(os.path.join(path, file)).st_mtime_ns for file in (*files, checkpoints.MANIFEST)
        }
    except OSError as error:
        raise RequestError("changed", "%s: %s" % (name, error.strerror)) from None
    values = {"name": name, "sha256": hashlib.sha256(manifest).hexdigest(), "changed_ns": changed}
    return VerbReply({**values, "passed_over": passed_over}, manifest)


def _newest_whole(run: Run) -> Tuple[str, List[DamagedCheckpoint]]:
    from ..store import inheritance  # few clients need it, and loading it would delay all the others

    try:
        return inheritance.newest_whole(run)
    except inheritance.ParentError as error:
        raise RequestError(error.code, str(error)) from None


def _picked(run: Run, which: str) -> str:
    late = checkpoints.late(run)
    sealed = [
        found for found in checkpoints.sealed(run.checkpoints) if os.path.basename(found[1]) not in late
    ]
    path = checkpoints.pick(sealed, which)
    if path is None:
        steps = ", ".join(str(step) for step, _ in sealed[-MAX_NAMED:]) or "none"
        also = " and ".join(word for word in ("last", "best") if checkpoints.pick(sealed, word))
        words = "run %s has no checkpoint %r; its steps: %s%s" % (
            run.id,
            which,
            steps,
            also and "; also " + also,
        )
        raise RequestError("no-checkpoint", words)
    return path


def send(session: ClientSession, request: RunRequest, payload: bytes) -> VerbReply:
    """Send file contents, one file after another.

    The payload lists [path, first byte, size of the whole file]. Raises RequestError `changed` instead of
    finishing the stream if a file is missing or became shorter.
    """
    run = session.run(request.run)
    stream = ChunkWriter(session.connection)
    for path, offset, size in _list(payload, list):
        try:
            descriptor, _ = open_output(run, str(path))
        except OSError as error:
            raise RequestError("changed", "%s: %s" % (path, error.strerror)) from None
        try:
            os.lseek(descriptor, int(offset), os.SEEK_SET)
            if not send_file(stream, descriptor, int(size) - int(offset)):
                raise RequestError("changed", "%s became shorter while it was sent" % path)
        finally:
            os.close(descriptor)
    stream.finish()
    return VerbReply({})


def reasons(left_out: Dict[str, str]) -> Dict[str, str]:
    """Return the reasons by path, at most MAX_REASONS of them."""
    return dict(sorted(left_out.items())[:MAX_REASONS])


def _list(payload: bytes, kind: type) -> List[Any]:
    """Decode a payload as a list. Raises RequestError."""
    try:
        value = strict_json.decode(payload)
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(element, kind) for element in value):
        raise RequestError("bad-payload", "the payload is not a list of files")
    if kind is list and not all(
        len(entry) == 3 and all(type(one) is int for one in entry[1:]) for entry in value
    ):
        raise RequestError("bad-payload", "the payload is not a list of [path, first byte, size]")
    return value


VERBS = {
    "outputs": Verb(OutputsRequest, outputs),
    "manifest": Verb(RunRequest, manifest),
    "checkpoint": Verb(Checkpoint, checkpoint),
    "send": Verb(RunRequest, send),
}
