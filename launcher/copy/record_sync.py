"""Fetch a run's record from its host into the local copy, by cursors.

A cursor records how much of a file this client has. Several clients may write one local copy, so a client
compares its cursor with the disk before it writes: a file that another client changed is read again instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple, NotRequired, TypedDict

from pydantic import Field, ValidationError

from launcher.base.json_file import JsonObject
from launcher.copy import index
from launcher.copy.printed_lines import Printed, PrintedLines, parse_events
from launcher.errors import ConnectionLostError, RunError
from launcher.transport.channel import AgentReply
from launcher.values.base import Record
from launcher.values.record import Event, RunState, State, is_terminal

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy

PLAN = "plan.json"
TAIL = 4096
_NODE = r"(?:[a-z0-9][a-z0-9-]{0,62}/)?"
_COPIED = re.compile(rf"plan\.json|[0-9]{{4,9}}/{_NODE}(?:attempt\.json|state\.json|events\.jsonl|log\.txt)")


class News(NamedTuple):
    """The content of one answer: the run's state, complete events, and complete lines that the training printed.

    `unfinished` is the start of an incomplete line. `is_full`: the host has more than one answer can hold.
    `is_all`: the host has no more for now. `size` is the number of bytes received.
    """

    state: RunState
    events: list[Event]
    log: list[Printed]
    is_all: bool
    unfinished: str = ""
    is_full: bool = False
    size: int = 0


class _SyncedPiece(Record):
    """A piece of a file: a whole JSON file, or the new bytes of a growing file from an offset."""

    path: str
    offset: Annotated[int, Field(ge=0)]
    size: Annotated[int, Field(ge=0)]


class Cursor(TypedDict):
    """The part of a growing file that a client has, with the digest of that part's end; for a JSON file, the digest of all of it."""

    offset: NotRequired[int]
    sha256: str


class _Update(Record):
    """The agent's answer to `read`; the bytes of the parts follow in their order."""

    state: JsonObject
    parts: list[_SyncedPiece] = []
    last: Annotated[list[int], Field(max_length=1)] = []
    is_full: bool = False


class RecordSync:
    """Writes a host's updates of a run's record into the local copy."""

    def __init__(self, local_copy: LocalCopy) -> None:
        """Create the object without reading files, as if the local copy were empty."""
        self._local_copy, self._files = local_copy, local_copy.files
        self._cursors: dict[str, Cursor] = {}
        self._from = 0
        self._unread: dict[str, bytes] = {}
        self._printed = PrintedLines(local_copy.files)
        self._seen_state: list[Any] | None = None

    def load(self, shown: Mapping[str, int] | None = None) -> list[Event]:
        """Set the cursors from the files on the disk; return their events.

        Raises RunError on a disk error. With `shown`, bytes of events and logs beyond the given numbers
        count as not read yet.
        """
        return [
            event
            for name, data in self._load_files(shown)
            if name.endswith("events.jsonl")
            for event in self._complete(name, data)
        ]

    def load_cursors(self) -> None:
        """Set the cursors from the files on the disk, without reading the events.

        Raises RunError on a disk error.
        """
        for name, data in self._load_files(None):
            if name.endswith("events.jsonl"):
                self._unread[name] = data[data.rfind(b"\n") + 1 :]

    def _load_files(self, shown: Mapping[str, int] | None) -> Iterator[tuple[str, bytes]]:
        """Set the cursors; yield the name and the bytes of each file."""
        self._cursors, self._unread, self._from = {}, {}, 0
        self._printed = PrintedLines(self._files)
        state = self._local_copy.state()
        has_ended = state is not None and is_terminal(state.state)
        for name in self._local_copy.record.of_attempts():
            if _COPIED.fullmatch(name):
                most = None if shown is None or name.endswith(".json") else shown.get(name, 0)
                with self._local_copy.disk_errors(self._local_copy.folder / name):
                    data = self._read_again(name, most)
                if name.endswith("/log.txt") and not has_ended:
                    self._printed.skip(name, data)
                yield name, data

    def catch_up(self) -> tuple[list[Event], list[Printed]]:
        """Read the last updates that another client has written; return the events and lines, unfinished lines too."""
        events: list[Event] = []
        log: list[Printed] = []
        for name in self._local_copy.record.sizes():
            with self._local_copy.disk_errors(self._local_copy.folder / name):
                data = self._read_again(name)
            if name.endswith("events.jsonl"):
                events += self._complete(name, data)
            else:
                log += self._printed.take(name, data)
        return events, log + self._printed.finish()

    def read_sizes(self) -> dict[str, int]:
        """Return the number of bytes read of each file of events and each log."""
        return {name: cursor["offset"] for name, cursor in self._cursors.items() if "offset" in cursor}

    def _read_again(self, name: str, most: int | None = None) -> bytes:
        """Set a file's cursor from its first `most` bytes on the disk; return the bytes that are new to this client."""
        previous, data = self._cursors.pop(name, None), self._local_copy.record.read(name)
        if data is None:
            return b""
        data = data[:most]
        self._cursors[name] = current = _cursor(name, data)
        if "offset" not in current:
            return b""
        start = previous["offset"] if previous else 0
        if previous != _cursor(name, data[:start]):
            self._forget_unread(name)  # the file was replaced
            start = 0
        return data[start:]

    def request(self) -> JsonObject:
        """Return the arguments of a `read`: the cursors, and the first folder that is requested."""
        folders = {name: name.partition("/")[0] for name in self._cursors if "/" in name}
        cursors = {name: self._cursors[name] for name, folder in folders.items() if int(folder) >= self._from}
        entry = self._local_copy.entry  # a local plan counts only after the host has sent the same plan
        has_plan = (entry is None or bool(entry.plan)) and self._files.is_file(PLAN)
        return {"cursors": cursors, "from": self._from, "state": self._seen_state, "plan": has_plan}

    def apply(self, answer: AgentReply) -> News:
        """Write the parts of an answer to the disk; return their contents.

        Raises ConnectionLostError for an answer that does not fit the request, such as an unknown path or a
        gap, and RunError on a disk error.
        """
        try:
            update = _Update.model_validate(answer.values, strict=True)
            state = RunState.lenient(update.state)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConnectionLostError(
                "", f"the host sent a malformed answer: {where}: {first['msg']}"
            ) from error
        pieces = self._cut(update.parts, answer.payload)
        self._local_copy.note_reached()
        events: list[Event] = []
        log: list[Printed] = []
        is_complete = True
        with self._local_copy.alone("mirror") if pieces else contextlib.nullcontext():
            for name, offset, sent in pieces:
                with self._local_copy.disk_errors(self._local_copy.folder / name):
                    is_written = self._put(name, offset, sent)
                    data = sent if is_written else self._read_again(name)
                is_complete = is_complete and is_written
                if name.endswith("events.jsonl"):
                    events += self._complete(name, data)
                elif name.endswith("log.txt"):
                    log += self._printed.take(name, data)
            if pieces:  # a growing file, or one in a subfolder, does not change this folder's time
                with self._local_copy.disk_errors(self._local_copy.folder):
                    self._files.touch()
        if is_complete and not update.is_full and update.last:
            self._from = update.last[0]
        self._seen_state = [state.state, state.reason, state.attempt, state.trouble is not None]
        self._local_copy.told = state = state.model_copy(
            update={"rehearsed": self._local_copy.record.plan().rehearsed}
        )
        is_all = not update.is_full and not update.parts
        if is_all and (is_terminal(state.state) or state.state in (State.WAITING, State.INTERRUPTED)):
            log += self._printed.finish()
        size = len(answer.payload)
        return News(state, events, log, is_all, self._printed.unfinished, update.is_full, size)

    def _cut(self, parts: list[_SyncedPiece], payload: bytes) -> list[tuple[str, int, bytes]]:
        """Return each part's name, offset and bytes.

        Raises ConnectionLostError for a part that was not requested.
        """
        pieces = []
        position = 0
        for part in parts:
            data = payload[position : position + part.size]
            position += part.size
            if not _COPIED.fullmatch(part.path) or len(data) != part.size:
                raise ConnectionLostError("", f"the host sent a file that no run has: {part.path!r}")
            held = self._cursors.get(part.path)
            if part.offset not in (0, held and held.get("offset")):
                raise ConnectionLostError(
                    "", f"the host sent {part.path} from {part.offset}, which leaves a gap"
                )
            pieces.append((part.path, part.offset, data))
        return pieces

    def _put(self, name: str, offset: int, data: bytes) -> bool:
        """Write a piece to the disk; return False, with nothing written, if another client has changed the file."""
        if name.endswith(".json"):
            current = self._local_copy.record.read(name)
            if current != data:
                if name == PLAN and current is not None:
                    raise RunError(
                        f"{self._local_copy.run}: its host sent another plan than the one in {self._local_copy.folder}, which stays"
                    )
                if self._cursors.get(name) != (None if current is None else _cursor(name, current)):
                    return False
                self._files.write(name, data)
            self._cursors[name] = _cursor(name, data)
            entry = self._local_copy.entry if name == PLAN else None
            if entry is not None and not entry.plan:
                index.update(entry, plan=hashlib.sha256(data).hexdigest())
            return True
        self._files.make_folder(os.path.dirname(name))
        cursor = self._cursors.get(name, _cursor(name, b""))
        with self._files.open(name, "r+b" if self._files.exists(name) else "x+b") as file:
            is_unchanged = _cursor_at(file, cursor["offset"]) == cursor
            file.seek(offset)
            current = file.read(len(data))
            agrees = data.startswith(current)
            if offset and not (is_unchanged and agrees):
                return False
            if offset == 0:
                self._forget_unread(name)
                if not agrees or (cursor["offset"] and is_unchanged):
                    self._keep_aside(name)
                    file.truncate(0)  # the host's file was replaced, or has lost its end
                    current = b""
            file.seek(offset + len(current))
            file.write(
                data[len(current) :]
            )  # another client may have written a part of it, and more after it
            self._cursors[name] = _cursor_at(file, offset + len(data))
        return True

    def _keep_aside(self, name: str) -> None:
        """Keep data that the host has lost: after a power loss its file may be shorter than this copy.

        On a full disk nothing is kept.
        """
        number = 1
        while self._files.exists(aside := f"{name}.lost-{number}"):
            number += 1
        try:
            with self._files.open(name) as source, self._files.open(aside, "wb") as copy:
                shutil.copyfileobj(source, copy)
        except OSError:
            self._files.remove(aside)

    def _complete(self, name: str, data: bytes) -> list[Event]:
        """Parse the complete lines; an unfinished last one is kept for the next piece."""
        *lines, rest = (self._unread.get(name, b"") + data).split(b"\n")
        self._unread[name] = rest
        return parse_events(lines)

    def _forget_unread(self, name: str) -> None:
        """Discard the unfinished line of a file that is read again from its beginning."""
        self._unread.pop(name, None)
        self._printed.forget(name)


def _cursor(name: str, data: bytes) -> Cursor:
    """Return the cursor of a client that has these bytes of a file, from its start."""
    if name.endswith(".json"):
        return {"sha256": hashlib.sha256(data).hexdigest()}
    return {"offset": len(data), "sha256": hashlib.sha256(data[-TAIL:]).hexdigest()}


def _cursor_at(file: IO[bytes], offset: int) -> Cursor:
    """Return the cursor of a client that has a growing file up to an offset."""
    before = min(TAIL, offset)
    file.seek(offset - before)
    return {"offset": offset, "sha256": hashlib.sha256(file.read(before)).hexdigest()}
