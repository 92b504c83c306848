"""Verbs that free space on this host."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Iterator, List, NamedTuple, Optional

from ..cards import lease
from ..host import garbage, leftovers
from ..liveness import run_state
from ..liveness.liveness import EndError
from ..record.rundir import RUN_ID, TERMINAL, Run
from ..serving import contact
from ..serving.requests import RequestError, RunId, RunRequest, VerbReply, read_object
from ..serving.session import ClientSession, Verb
from ..store.last_copies import LastCopies, last_copies
from ..store.outputs import OutputDigests
from ..store.shipping import LineWriter
from .summary_cache import SummaryCache

LEAVING_S, LOOK_S = 10.0, 0.2
"""How long processes of an ended run may take to exit, and the interval between two looks."""
LOSSES = ("nothing", "checkpoints", "all")


class Remove(NamedTuple):
    """A run, and what may be lost with it: `nothing`, `checkpoints` or `all`.

    The payload maps each file that the client holds, by its path below work/, to its SHA-256. With `all`, a
    run whose state is silent is stopped first.
    """

    run: RunId
    lose: str = "nothing"


def remove(session: ClientSession, request: Remove, payload: bytes) -> VerbReply:
    """Remove a run that has ended. Return the number of bytes freed.

    Files are compared here, under the run's lock. Raises RequestError `last-copies`, with the files, if the
    client lacks files that may not be lost.
    """
    if request.lose not in LOSSES:
        raise RequestError("bad-argument", "lose: it must be nothing, checkpoints or all")
    held = read_object(payload, "the digests") if payload else {}
    run = session.run(request.run)
    garbage.check_writable(session.root)
    if not garbage.is_half_made(run):
        contact.check_is_here(run)
    if request.lose == "all" and run_state.is_silent(run_state.state_of(run)):
        contact.stop(run, "cancel")
    elif run_state.state_of(run)["state"] in TERMINAL:
        _see_out(run)
    lines = LineWriter(
        session.connection
    )  # lines show the client that the agent is alive: reading the files may take long
    digests = OutputDigests(run, lines.advance)

    def find(run: Run) -> LastCopies:
        return last_copies(run, digests, held, with_checkpoints=request.lose == "nothing")

    with contextlib.ExitStack() as stack:
        stack.enter_context(_held(run))
        try:
            freed = garbage.remove_run(run, None if request.lose == "all" else find, stack.close)
        except garbage.NotRemovableError as error:
            raise RequestError("refused", str(error)) from None
        except garbage.LastCopyError as error:
            digests.save()
            words = "run %s: %s" % (run.id, error)
            raise RequestError("last-copies", words, error.copies.describe()) from None
    with contextlib.suppress(OSError):  # the next sweep frees the lease; without a run it holds no card
        lease.give_back(run)
    lines.finish()
    return VerbReply({"bytes": freed})


def _see_out(run: Run) -> None:
    """Wait until no process of an ended run remains; end those that stay too long. Raises RequestError."""
    run_probe = run_state.probe_of(run)
    for end in (run_probe.end, None):
        deadline = time.monotonic() + LEAVING_S
        while left := run_probe.remaining(run):
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_S)
        else:
            return
        if end is not None:
            try:
                end(run)
            except EndError as error:
                raise RequestError("refused", "run %s has ended, but %s" % (run.id, error)) from None
    raise RequestError("refused", "run %s has ended, but %s: try again" % (run.id, left))


@contextlib.contextmanager
def _held(run: Run) -> Iterator[None]:
    """Keep other clients from working on a run during its removal. Raises RequestError."""
    if not os.path.isdir(run.control):  # the run is half-made
        yield
        return
    with contact.contact(run) as is_ours:
        if not is_ours:
            raise RequestError("refused", "another client is working on run %s: try again" % run.id)
        if not os.path.isdir(run.path):
            raise RequestError("no-run", "run %s was removed just now" % run.id)
        yield


class CollectGarbage(NamedTuple):
    """Whether to only report what would be removed."""

    dry_run: bool = False


def collect_garbage(session: ClientSession, request: CollectGarbage, _payload: bytes) -> VerbReply:
    """Remove what no run on this host refers to.

    Sends lines with the number of runs read so far, then a line per item. The client removes an engine's
    containers and images that carry the label `root`, except the containers of `runs` and the `images` that a
    run names. While a run is `unreadable`, everything it may need is kept.
    """
    if not request.dry_run:
        garbage.check_writable(session.root)
    lines = LineWriter(session.connection)
    survey = garbage.Survey(session.root, os.path.dirname(os.path.abspath(sys.argv[0])))
    with session.store.alone():
        survey.look(lines.advance)
        items = survey.garbage()
        if not request.dry_run:
            garbage.collect(session.root, items, lines.advance)
            SummaryCache(session.root).forget_removed()
    survey.look(lines.advance)  # a run that was made since then may name an image
    for item in items:
        lines.put(item)
    lines.finish()
    needed = {"runs": survey.unended, "images": sorted(survey.images), "unreadable": survey.doubts()}
    return VerbReply({"root": session.label, **needed})


class SweepRequest(NamedTuple):
    """Whether to only report what would be done, and the runs that have a container in the engine."""

    dry_run: bool = False
    runs: Optional[List[str]] = None


def sweep(session: ClientSession, request: SweepRequest, _payload: bytes) -> VerbReply:
    """End and remove leftovers of this root that no run needs; see leftovers.py.

    The client removes the containers in an engine. For that, `ended` lists which of the requested `runs` have
    ended, and how long ago.
    """
    items = leftovers.sweep(session.root, dry_run=request.dry_run)
    run_ids = [name for name in request.runs or () if RUN_ID.fullmatch(name)]
    return VerbReply({"items": items, "ended": leftovers.ages(session.root, run_ids), "root": session.label})


def remains(session: ClientSession, request: RunRequest, _payload: bytes) -> VerbReply:
    """Return the remaining processes and leases of an ended run, after a short wait for its agent to exit."""
    return VerbReply({"left": leftovers.remains(session.run(request.run))})


VERBS = {
    "remove": Verb(Remove, remove),
    "gc": Verb(CollectGarbage, collect_garbage),
    "sweep": Verb(SweepRequest, sweep),
    "remains": Verb(RunRequest, remains),
}
