"""Pull one sealed checkpoint, verified by its manifest; keep the newest one here while a run is followed."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from rich.filesize import decimal

from launcher.base.text import files_text
from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, LaunchError
from launcher.runs.pull.local_copies import LocalCopies
from launcher.runs.pull.transfer import ChangedError, Transfer, until_stable
from launcher.runs.run_client import open_client
from launcher.values.reported.checkpoint import MANIFEST, SealedCheckpoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from launcher.runs.follow.view import Stage, View
    from launcher.runs.run_client import Opening
    from launcher.transport.client.host_client import HostClient
    from launcher.values.host import Host
    from launcher.values.reported.output import Content

LAST = "last"
WHOLE = "whole"
"""The newest checkpoint whose files all match its manifest on the host: a run can be continued from it."""
KEPT = ".kept-checkpoint.json"
"""The record of the checkpoint that a follower keeps in the local copy, and of its arrival time."""


class LocalCheckpoint(NamedTuple):
    """A whole checkpoint in the local copy: the files fetched now, the number of files present before, and renamed user files."""

    checkpoint: SealedCheckpoint
    folder: Path
    fetched: list[Content]
    present: int
    yours: list[Path]

    @property
    def words(self) -> str:
        """The fetched files in a few words."""
        size = decimal(sum(content.size for content in self.fetched))
        came = f"{files_text(len(self.fetched))}, {size}" if self.fetched else "already here"
        return f"{self.checkpoint.name}, step {self.checkpoint.step}: {came}"


def pull_checkpoint(client: HostClient, local_copy: LocalCopy, which: str, stage: Stage) -> LocalCheckpoint:
    """Pull the `best`, the `last`, a numbered or the newest `whole` checkpoint of a run to its place here.

    The manifest is put in place last, so that a folder with a manifest is whole. An interrupted transfer
    continues with the missing bytes. Only one client pulls at a time. Raises AgentError `no-checkpoint`, and
    RunError if the checkpoint does not fit here or this disk refuses a write.
    """
    with local_copy.alone("pull"), local_copy.disk_errors(local_copy.folder):
        copies = LocalCopies(local_copy)
        transfer = Transfer(client, local_copy, copies, stage)
        fetched: list[Content] = []
        yours: list[Path] = []

        def put(content: Content, part: Path) -> None:
            moved = copies.put(content, part)
            fetched.append(content)
            if moved is not None:
                yours.append(moved)

        def fetch() -> SealedCheckpoint:
            sealed = client.runs.checkpoint(local_copy.run, which)
            contents, before = sealed.contents, len(fetched)
            try:
                transfer.fetch([content for content in contents[:-1] if not copies.has(content)], put)
                transfer.fetch([content for content in contents[-1:] if not copies.has(content)], put)
            except (AgentError, ChangedError) as error:
                if not isinstance(error, AgentError) or error.code == "changed":
                    _drop(local_copy, copies, sealed, fetched[before:])
                    del fetched[before:]
                raise
            return sealed

        try:
            sealed = until_stable(fetch, f"launch pull {local_copy.short} --checkpoint {which}")
        finally:
            local_copy.files.sync_names(local_copy.place(content.path) for content in fetched)
        copies.save_digests()
        came = {content.path for content in fetched}
        present = sum(content.path not in came for content in sealed.contents)
        return LocalCheckpoint(sealed, local_copy.checkpoints / sealed.name, fetched, present, yours)


def _drop(
    local_copy: LocalCopy, copies: LocalCopies, sealed: SealedCheckpoint, fetched: Sequence[Content]
) -> None:
    """Remove the fetched part of a checkpoint that the host has deleted, e.g. by rotation: the rest will never arrive."""
    for content in sealed.contents:
        local_copy.files.remove(copies.part_of(content))
    top = local_copy.checkpoints / sealed.name
    for content in fetched:
        place = local_copy.place(content.path)
        local_copy.files.remove(place)
        for folder in (one for one in place.parents if one.is_relative_to(top)):
            with contextlib.suppress(OSError):  # a folder with other files stays
                local_copy.files.remove_empty(folder)


class KeptCheckpoint(NamedTuple):
    """The checkpoint that a follower keeps in the local copy, and its arrival in seconds since 1970.

    `is_asked`: the user pulled it by name, so it stays when a newer one arrives.
    """

    name: str
    step: int
    time: float
    is_asked: bool = False


def kept_checkpoint(local_copy: LocalCopy) -> KeptCheckpoint | None:
    """Return the checkpoint that a follower keeps in a local copy; None if it keeps none, or the user has removed it."""
    record = local_copy.files.read_json(KEPT)
    name, step, came = record.get("name"), record.get("step"), record.get("time")
    if not isinstance(name, str) or not isinstance(step, int) or not isinstance(came, int | float):
        return None
    is_here = local_copy.files.is_file(f"checkpoints/{name}/{MANIFEST}")
    return (
        KeptCheckpoint(name, step, float(max(0, min(came, 1e12))), record.get("is_asked") is True)
        if is_here
        else None
    )


def note_asked(local_copy: LocalCopy, name: str) -> None:
    """Record that the user pulled a checkpoint by name."""
    kept = kept_checkpoint(local_copy)
    if kept is not None and kept.name == name:
        _write_kept(local_copy, kept._replace(is_asked=True))


def _write_kept(local_copy: LocalCopy, kept: KeptCheckpoint) -> None:
    with local_copy.disk_errors(local_copy.folder):
        local_copy.files.write(KEPT, (json.dumps(kept._asdict()) + "\n").encode())


class CheckpointKeeper:
    """Downloads the newest whole checkpoint of a followed run, in a separate thread and over a separate host client.

    A failure becomes a note, once for each cause: the run continues.
    """

    def __init__(self, host: Host, local_copy: LocalCopy, opening: Opening | None = None) -> None:
        """Create the keeper without a thread; the first `wake` starts one."""
        self._host, self._local_copy, self._opening = host, local_copy, opening
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._said: set[str] = set()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Fetch the newest checkpoint soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._wanted.put(True)

    def tell(self, view: View) -> None:
        """Show the failures since the last call."""
        while not self._notes.empty():
            view.note(self._notes.get())

    def finish(self, view: View) -> None:
        """Wait until the newest checkpoint is here, or cannot be fetched."""
        if self._thread is not None:
            self._wanted.put(False)
            self._thread.join()
        self.tell(view)

    def _work(self) -> None:
        while self._next():
            try:
                with open_client(self._host, self._local_copy, self._opening) as client:
                    keep_newest(client, self._local_copy)
            except LaunchError as error:
                words = str(error).splitlines()[0]
                if words not in self._said:
                    self._said.add(words)
                    self._notes.put(f"the newest checkpoint was not downloaded: {words}; the run continues")

    def _next(self) -> bool:
        """Wait for a request; return whether to continue.

        Several requests count as one, for the newest checkpoint.
        """
        wish = self._wanted.get()
        while wish and not self._wanted.empty():
            wish_after = self._wanted.get()
            if not wish_after:
                self._wanted.put(False)  # end after this request
                break
        return wish


def keep_newest(client: HostClient, local_copy: LocalCopy) -> KeptCheckpoint:
    """Pull the newest checkpoint, and remove the one kept before. Raises LaunchError."""
    from launcher.runs.follow.view import NullStage

    before = kept_checkpoint(local_copy)
    home = pull_checkpoint(client, local_copy, LAST, NullStage())
    kept = KeptCheckpoint(home.checkpoint.name, home.checkpoint.step, time.time())
    if before is not None and before.name == kept.name:
        return before
    _write_kept(local_copy, kept)
    if before is not None and not before.is_asked and _is_as_it_came(local_copy, before.name):
        with contextlib.suppress(OSError):
            local_copy.files.remove_tree(f"checkpoints/{before.name}")
    return kept


def _is_as_it_came(local_copy: LocalCopy, name: str) -> bool:
    """Return whether a local checkpoint has exactly the files of its manifest.

    If not, the user has added or changed files, and the checkpoint is not removed.
    """
    folder = f"checkpoints/{name}"
    listed = local_copy.files.read_json(f"{folder}/{MANIFEST}").get("files")
    if not isinstance(listed, dict):
        return False
    here = {path.removeprefix(f"{folder}/") for path, _ in local_copy.files.walk(folder)}
    here.discard(MANIFEST)
    if here != listed.keys():
        return False
    copies = LocalCopies(local_copy)

    def digest(path: str) -> str | None:
        return copies.read(f"checkpoints/{name}/{path}", lambda _count: None)

    return all(
        isinstance(entry, dict) and digest(path) == entry.get("sha256") for path, entry in listed.items()
    )
