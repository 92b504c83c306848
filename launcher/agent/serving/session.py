"""A session: the resources of one client's connection on this host, and their cleanup once it has gone.

For example, a launch holds a prepared run and its cards. If the client dies before the start, the session
removes the run and releases the cards.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Type

from ..cards import lease, tickets
from ..record.files import remove_folder
from ..record.locks import Lock
from ..record.packages_report import PackagesReport
from ..record.rundir import RecordFolder, Run
from ..store.manifest import Manifest
from ..store.store import Store
from ..system import process
from .client_connection import ClientConnection
from .requests import RequestError, RunId, VerbReply

if TYPE_CHECKING:
    from ..liveness.predecessor import SilenceWatch


class UnsealedEnvironment(NamedTuple):
    """An environment that was made here and is not sealed yet, with its Python's report of packages."""

    path: str
    packages: PackagesReport


class OfferedCheckpoint(NamedTuple):
    """A checkpoint of a run on another host, by its manifest, which was checked."""

    parent: str
    name: str
    step: int
    files: Manifest
    manifest: bytes

    @property
    def sizes(self) -> Dict[str, int]:
        """The sizes of its contents by their SHA-256."""
        return {entry["sha256"]: entry["size"] for entry in self.files.values()}


class ClientSession:
    """The resources of a connection. The verbs change them; `clear_away` leaves nothing half-done behind."""

    def __init__(self, root: str, connection: ClientConnection) -> None:
        """Serve runs below `root` to the client of this connection."""
        self.root = root
        self.connection = connection
        self.store = Store(root)
        self.prepared: Dict[str, RecordFolder] = {}
        """The first folders of runs that are not started yet, with their locks held.

        The session's cleanup removes them.
        """
        self.handed_over: Dict[str, RecordFolder] = {}
        """The folders of runs whose agent the client starts, with their locks held.

        The session's cleanup only releases them.
        """
        self.manifests: Dict[str, Manifest] = {}
        """The manifests that were offered for prepared runs."""
        self.cards: Dict[str, lease.Taken] = {}
        self.ticket: Optional[tickets.Ticket] = None
        self.locks: Dict[str, Lock] = {}
        self.silences: Dict[str, SilenceWatch] = {}
        """The runs that may continue only after their last agent has been silent for a while."""
        self.checkpoints: Dict[str, OfferedCheckpoint] = {}
        """The checkpoints that were offered for prepared runs."""
        self.unsealed: Dict[str, UnsealedEnvironment] = {}
        """The environments in the making, by the name of their lock."""

    @property
    def label(self) -> str:
        """The label of a container or image that belongs to this root: the host's id and the root's path."""
        return "%s:%s" % (process.host_id(), self.root)

    def path_of(self, run_id: RunId) -> str:
        """Return the path of a run's folder."""
        return os.path.join(self.root, "runs", run_id)

    def run(self, run_id: RunId) -> Run:
        """Return a run that exists. Raises RequestError."""
        run = Run(self.path_of(run_id))
        if not os.path.isdir(run.path):
            raise RequestError("no-run", "no run %s below %s" % (run.id, self.root))
        return run

    def prepared_run(self, run_id: RunId) -> Run:
        """Return a run that is being prepared on this connection. Raises RequestError."""
        run = self.run(run_id)
        if run.id not in self.prepared:
            raise RequestError("not-prepared", "run %s is not being prepared on this connection" % run.id)
        return run

    @property
    def holds(self) -> bool:
        """Whether the session must clear away or release something when the client has gone."""
        held = (self.prepared, self.handed_over, self.cards, self.locks, self.silences, self.unsealed)
        return any(held) or self.ticket is not None

    def release_cards(self, run_id: str) -> None:
        """Release this session's hold on a run's cards: its agent holds them by now, or no process needs them."""
        taken = self.cards.pop(run_id, None)
        if taken is not None:
            taken.release()

    def leave_queue(self) -> None:
        """Give up the place in the queue for cards."""
        if self.ticket is not None:
            self.ticket.leave()
            self.ticket = None

    def drop_unsealed(self, name: str) -> None:
        """Remove the environment made under a lock if it was not sealed: it failed, or does not work."""
        if name in self.unsealed:
            from ..making import (
                environment_build,  # imported here: most sessions make none, and loading takes time
            )

            environment_build.remove(self.unsealed[name].path)
            del self.unsealed[name]

    def clear_away(self) -> None:
        """Remove prepared runs that were never started, and release the rest.

        A sweep removes what cannot be removed here.
        """
        with contextlib.suppress(OSError):
            self.leave_queue()
        for folder in self.handed_over.values():
            folder.release()
        if self.prepared:
            from ..host import garbage  # imported here: most sessions prepare nothing, and loading takes time
        for run_id, folder in self.prepared.items():
            run = Run(self.path_of(RunId(run_id)))
            with contextlib.suppress(OSError):
                lease.give_back(run)
            # Hold the folder until it is moved: a client may then make a new run of this id.
            with contextlib.suppress(OSError):
                remove_folder(garbage.move_aside(run))
            folder.release()
        for run_id in list(self.cards):
            self.release_cards(run_id)
        for name in list(self.unsealed):
            with contextlib.suppress(OSError):
                self.drop_unsealed(name)


class Verb(NamedTuple):
    """A verb's handler: the type of its arguments, and a function of session, arguments and payload."""

    arguments: Type[Any]
    answer: Callable[[ClientSession, Any, bytes], VerbReply]
