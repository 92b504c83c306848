"""Verbs about the host itself."""

from __future__ import annotations

import contextlib
import os
from typing import Any, List, NamedTuple, Optional

from ..host import probe_host
from ..serving.requests import NoArguments, VerbReply
from ..serving.session import ClientSession, Verb


class ProbeRequest(NamedTuple):
    """The options of a probe; see probe_host.py.

    They are the job's interpreter and packages, the engine, the model to look for, and whether to ask Slurm.
    """

    env: Optional[str] = None
    packages: Optional[List[str]] = None
    engine: Optional[str] = None
    model: Any = None
    model_keys: Optional[List[str]] = None
    slurm: bool = False


def ping(_session: ClientSession, _request: NoArguments, _payload: bytes) -> VerbReply:
    """Answer, so that the client knows that the connection works."""
    return VerbReply({})


def probe(session: ClientSession, request: ProbeRequest, _payload: bytes) -> VerbReply:
    """Return the host's facts."""
    return VerbReply(probe_host.probe(session.root, *request))


def root(session: ClientSession, _request: NoArguments, _payload: bytes) -> VerbReply:
    """Return the label of this root's containers and images, and the root's id (None if the root is removed)."""
    root_id = None
    with contextlib.suppress(OSError):
        root_id = os.readlink(os.path.join(session.root, "root-id"))
    return VerbReply({"root": session.label, "id": root_id})


def holds(session: ClientSession, _request: NoArguments, _payload: bytes) -> VerbReply:
    """Return whether closing the connection would release something.

    It may hold a prepared run, cards, a place in a queue or a lock.
    """
    return VerbReply({"holds": session.holds})


VERBS = {
    "ping": Verb(NoArguments, ping),
    "probe": Verb(ProbeRequest, probe),
    "root": Verb(NoArguments, root),
    "holds": Verb(NoArguments, holds),
}
