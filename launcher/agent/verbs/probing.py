"""Verbs about the host itself."""

from __future__ import annotations

import contextlib
import os
from typing import Any, List, NamedTuple, Optional

from ..host import probe_host
from ..serving.requests import NoArguments, Reply
from ..serving.session import Session, Verb


class Probe(NamedTuple):
    """The job's interpreter and packages, the engine and the model to look for, whether Slurm is asked; see probe_host.py."""

    env: Optional[str] = None
    packages: Optional[List[str]] = None
    engine: Optional[str] = None
    model: Any = None
    model_keys: Optional[List[str]] = None
    slurm: bool = False


def ping(_session: Session, _request: NoArguments, _payload: bytes) -> Reply:
    """Answer, so that the client knows that the connection lives."""
    return Reply({})


def probe(session: Session, request: Probe, _payload: bytes) -> Reply:
    """Return the host's facts."""
    return Reply(probe_host.probe(session.root, *request))


def root(session: Session, _request: NoArguments, _payload: bytes) -> Reply:
    """Return what marks a container or an image as belonging to this root, and the root's id, None once it is gone."""
    root_id = None
    with contextlib.suppress(OSError):
        root_id = os.readlink(os.path.join(session.root, "root-id"))
    return Reply({"root": session.label, "id": root_id})


def holds(session: Session, _request: NoArguments, _payload: bytes) -> Reply:
    """Return whether something would end with this connection: a prepared run, cards, a place in a queue, a lock."""
    return Reply({"holds": session.holds})


VERBS = {
    "ping": Verb(NoArguments, ping),
    "probe": Verb(Probe, probe),
    "root": Verb(NoArguments, root),
    "holds": Verb(NoArguments, holds),
}
