"""The datasets made from a spool, each an archive of runs' work files, and whether a run needs them.

A file with the dataset's name proves that it was made here. A launch holds the file's lock until its run is
on record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from launcher.agent.record.locks import Lock
from launcher.agent.record.rundir import TERMINAL, Run
from launcher.backends.spool.segment_settings import SegmentTree
from launcher.errors import ServiceError, ServiceUnreachableError

FOLDER = "trees"
RECORDS = "control/tree*.json"
"""The files in which runs name their archives: the archive of the upload, and those of single segments."""


class KeptTree(NamedTuple):
    """A dataset: its slug, its size in bytes, and the number of the spool's runs that need it."""

    slug: str
    bytes: int
    users: int


class SpoolTrees:
    """The datasets of the spool at a root."""

    def __init__(self, root: Path) -> None:
        """Store the arguments. Nothing is read."""
        self._root = root
        self._held: dict[str, Lock] = {}

    def hold(self, slug: str) -> None:
        """Keep a dataset from being deleted while this process lives."""
        if slug not in self._held:
            self._mark(slug).parent.mkdir(exist_ok=True, mode=0o700)
            lock = Lock.take(str(self._mark(slug)), 60.0, shared=True)
            if lock is not None:
                self._held[slug] = lock

    @contextlib.contextmanager
    def making(self, slug: str, size: int) -> Iterator[None]:
        """Record that a dataset is made from here.

        Undo that if the service refuses, but not if it does not answer.
        """
        self._mark(slug).write_text(f"{size}\n")
        try:
            yield
        except ServiceUnreachableError:
            raise
        except ServiceError:
            self._mark(slug).write_text("")
            raise

    def kept(self) -> list[KeptTree]:
        """Return the datasets made from here."""
        users = self._users()
        found = []
        for mark in sorted((self._root / FOLDER).glob("launch-*")):
            size = mark.read_text().strip()
            if size.isdecimal():
                found.append(KeptTree(mark.name, int(size), users.get(mark.name, 0)))
        return found

    @contextlib.contextmanager
    def unneeded(self, slug: str) -> Iterator[bool]:
        """Yield whether no run needs a dataset made from here. If so, forget the dataset afterwards.

        No run can start to need it during the `with`.
        """
        lock = Lock.take(str(self._mark(slug)), 0.0)
        try:
            is_unneeded = lock is not None and any(
                tree.slug == slug and not tree.users for tree in self.kept()
            )
            yield is_unneeded
            if is_unneeded:
                self._mark(slug).unlink()
        finally:
            if lock is not None:
                lock.release()

    def _users(self) -> dict[str, int]:
        """Return the number of runs that need each dataset.

        A run needs it until it has ended, or if its record cannot be read.
        """
        users: dict[str, int] = {}
        for path in (self._root / "runs").glob(f"*/{RECORDS}"):
            last = Run(str(path.parents[1])).last()
            if last is not None and last.read_state().get("state") in TERMINAL:
                continue
            with contextlib.suppress(OSError, ValidationError):
                slug = SegmentTree.model_validate_json(path.read_bytes()).dataset
                users[slug] = users.get(slug, 0) + 1
        return users

    def _mark(self, slug: str) -> Path:
        return self._root / FOLDER / slug
