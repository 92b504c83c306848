"""Verbs that clear this host, and that bring a run's artifacts home before."""

from __future__ import annotations

import os
import sys
from typing import List, NamedTuple, Optional

from ..fate import run_state
from ..host import garbage, leftovers
from ..record.rundir import RUN_ID
from ..store import shipping
from . import contact
from .requests import OfRun, Reply, RequestError, RunId
from .session import Session, Verb


class Remove(NamedTuple):
    """A run; whether its artifacts may go too; whether it is cancelled first if its fate is silent."""

    run: RunId
    artifacts: bool = False
    force: bool = False


def remove(session: Session, request: Remove, _payload: bytes) -> Reply:
    """Remove a run that has ended; return the bytes that this frees."""
    run = session.run(request.run)
    contact.check_is_here(run)
    if request.force and run_state.is_silent(run_state.state_of(run)):
        contact.stop(run, "cancel")
    try:
        return Reply({"bytes": garbage.remove_run(run, even_artifacts=request.artifacts)})
    except garbage.NotRemovableError as error:
        raise RequestError("refused", str(error)) from None


class CollectGarbage(NamedTuple):
    """Whether to say only what would be removed."""

    dry_run: bool = False


def collect_garbage(session: Session, request: CollectGarbage, _payload: bytes) -> Reply:
    """Remove what no run here names any more; return what it was.

    The client removes what an engine holds: `runs` are those whose containers stay, `images` those that a run names, and
    `root` marks both as ours.
    """
    with session.store.alone():
        items = garbage.garbage(session.root, os.path.dirname(os.path.abspath(sys.argv[0])))
        if not request.dry_run:
            garbage.collect(session.root, items)
    runs, images = garbage.needed(session.root)
    return Reply({"items": items, "runs": runs, "images": images, "root": session.label})


class Sweep(NamedTuple):
    """Whether to say only what would be done; the runs that have a container in the engine."""

    dry_run: bool = False
    runs: Optional[List[str]] = None


def sweep(session: Session, request: Sweep, _payload: bytes) -> Reply:
    """End and remove what is ours and not needed; see leftovers.py.

    The client removes what an engine holds: `ended` says which of its `runs` have ended, and how long ago.
    """
    items = leftovers.sweep(session.root, dry_run=request.dry_run)
    run_ids = [name for name in request.runs or () if RUN_ID.fullmatch(name)]
    return Reply({"items": items, "ended": leftovers.ages(session.root, run_ids), "root": session.label})


def remains(session: Session, request: OfRun, _payload: bytes) -> Reply:
    """Return what is left of a run that has ended, after a moment in which its agent may leave."""
    return Reply({"left": leftovers.remains(session.run(request.run))})


def pull(session: Session, request: OfRun, _payload: bytes) -> Reply:
    """Send the run's artifacts: a tar stream in chunks, then what it held and what was left out."""
    manifest, left_out = shipping.send_artifacts(session.run(request.run), session.connection)
    return Reply({"files": manifest, "left_out": left_out})


VERBS = {
    "remove": Verb(Remove, remove),
    "gc": Verb(CollectGarbage, collect_garbage),
    "sweep": Verb(Sweep, sweep),
    "remains": Verb(OfRun, remains),
    "pull": Verb(OfRun, pull),
}
