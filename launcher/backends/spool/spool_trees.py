"""The datasets that were made from a spool, each an archive of what runs work on: which there are, and whether a run needs them.

A file of the dataset's name is proof that it was made here, and its lock is held by a launch until its run is on record.
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
"""Where runs name what they need: the archive of what was sent, and those of single segments."""


class KeptTree(NamedTuple):
    """A dataset by its slug, its size in bytes, and how many runs of the spool need it."""

    slug: str
    bytes: int
    users: int


class SpoolTrees:
    """The datasets of the spool at a root."""

    def __init__(self, root: Path) -> None:
        """Nothing is read yet."""
        self._root = root
        self._held: dict[str, Lock] = {}

    def hold(self, slug: str) -> None:
        """Keep a dataset from being deleted as long as this process lives."""
        if slug not in self._held:
            self._mark(slug).parent.mkdir(exist_ok=True, mode=0o700)
            lock = Lock.take(str(self._mark(slug)), 60.0, shared=True)
            if lock is not None:
                self._held[slug] = lock

    @contextlib.contextmanager
    def making(self, slug: str, size: int) -> Iterator[None]:
        """Record that a dataset is made from here, unless the service refuses. Without an answer it may have been made."""
        self._mark(slug).write_text(f"{size}\n")
        try:
            yield
        except ServiceUnreachableError:
            raise
        except ServiceError:
            self._mark(slug).write_text("")
            raise

    def kept(self) -> list[KeptTree]:
        """Return the datasets that were made from here."""
        users = self._users()
        found = []
        for mark in sorted((self._root / FOLDER).glob("launch-*")):
            size = mark.read_text().strip()
            if size.isdecimal():
                found.append(KeptTree(mark.name, int(size), users.get(mark.name, 0)))
        return found

    @contextlib.contextmanager
    def unneeded(self, slug: str) -> Iterator[bool]:
        """Yield whether no run needs a dataset that was made from here; none comes to need it meanwhile. It is forgotten then."""
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
        """Return how many runs need each dataset: those that have not ended, or whose record cannot be read."""
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
