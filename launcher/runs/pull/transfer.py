"""Transfer files of a run from its host, verified, resuming where an earlier transfer broke off."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.filesize import decimal

from launcher.base.meter import Meter
from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, MalformedAnswerError, RunError
from launcher.runs.follow.view import Stage
from launcher.runs.pull.local_copies import PARTS, LocalCopies
from launcher.transport.channel import Incoming
from launcher.transport.client.host_client import HostClient
from launcher.values.reported.output import Content, Manifest, RunOutput

PIECE = 1 << 18
TRIES = 3
RESERVE = 1 << 20
"""The bytes kept free when only fitting files are pulled, because records are written too."""
Put = Callable[[Content, Path], None]
"""Puts a whole and verified file, given as a part, into its place."""
Value = TypeVar("Value")


class ChangedError(Exception):
    """Raised when a file's bytes are not those announced, because the file changed after the announcement."""


def until_stable(work: Callable[[], Value], again: str) -> Value:
    """Repeat some work while files change under it.

    Raises RunError with the command `again` after several tries.
    """
    tries = 0
    while True:
        try:
            return work()
        except (AgentError, ChangedError) as error:
            tries += 1
            if isinstance(error, AgentError) and error.code != "changed":
                raise
            if tries == TRIES:
                raise RunError(f"{error}, {TRIES} times\n  once it is written   {again}") from error


class Transfer:
    """The transfer of files of one run over one host client."""

    def __init__(self, client: HostClient, local_copy: LocalCopy, copies: LocalCopies, stage: Stage) -> None:
        self._client, self._local_copy, self._copies, self._stage = client, local_copy, copies, stage

    def heard(self, total: int = 0) -> Callable[[int], None]:
        """Return a function that shows how many bytes the host has read so far."""
        meter, before = Meter(total, self._stage.moved, "checking"), 0

        def show(read: int) -> None:
            nonlocal before
            meter.advance(read - before, f"on {self._client.host}")
            before = read

        return show

    def digests(self, files: Sequence[RunOutput]) -> Manifest:
        """Have the host read files; return their present digests."""
        if not files:
            return Manifest([], {})
        total = sum(file.size for file in files)
        return self._client.runs.manifest(
            self._local_copy.run, [file.path for file in files], self.heard(total)
        )

    def fetch(self, contents: Sequence[Content], put: Put) -> None:
        """Fetch files and put each into its place once it is whole, verified and synced.

        Raises RunError, before a byte is sent, if the files do not fit here, and ChangedError for a file that
        has changed.
        """
        self._check_room(contents)
        firsts: dict[str, Content] = {}
        twins = [content for content in contents if firsts.setdefault(content.sha256, content) is not content]
        starts = [(content, self._copies.bytes_of_part(content)) for content in firsts.values()]
        meter = Meter(sum(content.size - start for content, start in starts), self._stage.moved)
        changed: list[str] = []

        def take(stream: Incoming) -> None:
            for content, start in starts:
                if not self._receive(stream, content, start, meter):
                    changed.append(content.path)
                    continue
                part = self._copies.part_of(content)
                for twin in twins:
                    if twin.sha256 == content.sha256:
                        self._put_copy(part, twin, put)
                put(content, part)

        if starts:
            self._local_copy.files.make_folder(PARTS)
            requests = [(content.path, start, content.size) for content, start in starts]
            self._client.runs.send(self._local_copy.run, requests, take)
        if changed:
            raise ChangedError(f"{changed[0]} changed while it was sent")

    def fitting(self, contents: Sequence[Content]) -> tuple[list[Content], dict[str, str]]:
        """Return the files that fit here, the smallest first, and the reasons for the others."""
        free = shutil.disk_usage(self._local_copy.folder).free - RESERVE
        chosen, others = list[Content](), dict[str, str]()
        for content in sorted(contents, key=lambda one: one.size):
            needed = content.size - self._copies.bytes_of_part(content)
            if needed > free:
                others[content.path] = f"no room here: {decimal(needed)} are needed"
                continue
            free -= needed
            chosen.append(content)
        return chosen, others

    def _check_room(self, contents: Sequence[Content]) -> None:
        needed = sum(content.size - self._copies.bytes_of_part(content) for content in contents)
        folder, short = self._local_copy.folder, self._local_copy.short
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise RunError(
                f"no room in {folder}: {decimal(needed)} are needed, {decimal(free)} are free, "
                f"{decimal(needed - free)} are missing\n"
                f"  make room, then   launch pull {short}     or a part of it   launch pull {short} PATH"
            )

    def _receive(self, stream: Incoming, content: Content, start: int, meter: Meter) -> bool:
        """Append the announced bytes of a file to its part; return whether the part matches the announced digest."""
        part = self._copies.part_of(content)
        digest, left = hashlib.sha256(), content.size - start
        with self._local_copy.files.open(part, "r+b" if start else "wb", buffering=0) as file:
            while piece := file.read(PIECE) if start else b"":
                digest.update(piece)
            while left:
                piece = stream.read(min(left, PIECE))
                if not piece:
                    host = self._client.host
                    raise MalformedAnswerError(host, f"{host}: the host sent fewer bytes than it announced")
                left -= len(piece)
                digest.update(piece)
                file.write(piece)
                meter.advance(len(piece), content.path)
            os.fsync(file.fileno())
        if digest.hexdigest() != content.sha256:
            self._local_copy.files.remove(part)
            return False
        return True

    def _put_copy(self, part: Path, twin: Content, put: Put) -> None:
        """Put a copy of a file into the place of another file with the same content."""
        copy, files = part.with_name(f"{part.name}.twin"), self._local_copy.files
        with files.open(part) as source, files.open(copy, "wb", buffering=0) as file:
            shutil.copyfileobj(source, file, PIECE)
            os.fsync(file.fileno())
        put(twin, copy)
