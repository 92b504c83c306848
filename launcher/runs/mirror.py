"""The client's copy of a run: plan.json and the numbered folders, byte for byte, fetched by cursor."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from launcher.errors import ConnectionLostError, RunError, UnknownNameError, UsageError
from launcher.hosts.channel import Reply
from launcher.runs.json_file import read_json
from launcher.runs.whole_file import write_whole
from launcher.values.base import Record
from launcher.values.host import Host
from launcher.values.record import Event, FolderStart, Parent, PlanSummary, RunState

if TYPE_CHECKING:
    from launcher.values.plan import Plan

TAIL = 4096
RUN_ID = re.compile(
    r"[0-9]{6}-[a-z0-9](?:[a-z0-9-]{0,24}[a-z0-9])?-[a-z0-9]{6}|[0-9]{4}-[a-z0-9][a-z0-9_.-]{0,47}-[a-z0-9]{4}"
)
"""The second form was given until 2026-11-22."""
_NAME_LENGTH = 26
_NODE = r"(?:[a-z0-9][a-z0-9-]{0,62}/)?"
_MIRRORED = re.compile(
    rf"plan\.json|[0-9]{{4,9}}/{_NODE}(?:attempt\.json|state\.json|events\.jsonl|log\.txt)"
)
_EVENT = TypeAdapter(Event)
_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_run_id(name: str) -> str:
    """Return a fresh run id, e.g. `261122-sft-k3f9w2`: the date, the job's name, six random characters.

    It has at most 40 characters, all of them lower-case letters, digits and hyphens, and 31 random bits, so that it
    can name a Slurm job, a Kaggle kernel or a cloud instance.
    """
    day = time.strftime("%y%m%d")
    job = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_NAME_LENGTH].strip("-") or "run"
    return f"{day}-{job}-{''.join(secrets.choice(_CHARACTERS) for _ in range(6))}"


def runs_folder() -> Path:
    """Return the folder of all mirrors: $LAUNCH_RUNS, else `runs` in the working directory.

    Raises UsageError where a file stands in its place, or in its way.
    """
    folder = Path(os.environ.get("LAUNCH_RUNS") or "runs").resolve()
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise UsageError(
            f"{there} is no folder: the runs need one there\n  or name another   LAUNCH_RUNS=FOLDER"
        )
    return folder


class News(NamedTuple):
    """What one answer brought: the run's state, complete events, and pieces of the log as text."""

    state: RunState
    events: list[Event]
    log: str
    is_all: bool


class _Part(Record):
    """A piece of a file: JSON files come whole, the others grow from an offset in bytes."""

    path: str
    offset: Annotated[int, Field(ge=0)]
    size: Annotated[int, Field(ge=0)]


class _Reading(Record):
    """What the agent answers to `read`; the bytes of the parts follow in their order."""

    state: dict[str, Any]
    parts: list[_Part] = []
    last: Annotated[list[int], Field(max_length=1)] = []
    is_full: bool = False


class Mirror:
    """One run's folder on the client."""

    def __init__(self, run: str, folder: Path) -> None:
        """Name the mirror of a run; nothing is read or made. Raises ValueError for what is no run id."""
        if not RUN_ID.fullmatch(run):
            raise ValueError(f"{run!r} is no run id")
        self.run = run
        self.folder = folder / run
        self.artifacts = self.folder / "artifacts"
        self.tensorboard = self.folder / "tensorboard"
        self.picture = self.folder / "loss.png"
        self._cursors: dict[str, dict[str, Any]] = {}
        self._from = 0
        self._unread: dict[str, bytes] = {}
        self._seen_state: list[Any] | None = None

    @property
    def short(self) -> str:
        """The last letters of the id, enough to name the run."""
        return self.run.rpartition("-")[2]

    # one mirror, several clients

    @contextlib.contextmanager
    def alone(self, errand: str) -> Iterator[None]:
        """Keep the other clients of this mirror from the same errand meanwhile; one that dies lets go.

        Raises RunError where the disk refuses.
        """
        path = self.folder / f".{errand}.lock"
        with contextlib.ExitStack() as stack:
            with self.disk_errors(path):
                self.folder.mkdir(parents=True, exist_ok=True)
                fcntl.flock(stack.enter_context(path.open("ab")), fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def disk_errors(self, path: Path) -> Iterator[None]:
        """Turn what this machine's disk refuses into a RunError that names the path."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{error.filename or path}: {error.strerror}\n"
                f"  the run is not affected; when that is mended   launch attach {self.short}"
            ) from error

    # who it belongs to

    def bind(self, host: Host, launched: float | None = None) -> None:
        """Make the folder and remember the run's host, so that any later command finds it without a file.

        `launched` is when the run began, in seconds since 1970, now by default; what was said first stands.
        Raises RunError where the disk refuses.
        """
        runs, path = self.folder.parent, self.folder / "client.json"
        with self.disk_errors(path):
            is_ours = not runs.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            if is_ours:
                (runs / ".gitignore").write_text("*\n")  # mirrors are neither committed nor shipped
            with self.alone("mirror"):
                known = read_json(path)
                record = {"version": 1, "run": self.run, "host": host.model_dump()}
                record["launched"] = known.get("launched") or launched or time.time()
                if record != known:
                    self._write("client.json", f"{json.dumps(record)}\n".encode())

    def host(self) -> Host:
        """Return the run's host. Raises RunError where the mirror does not say."""
        try:
            return Host.model_validate(json.loads((self.folder / "client.json").read_text())["host"])
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            raise RunError(
                f"{self.folder} does not say on which host {self.run} runs\n  add --host HOST"
            ) from error

    def launched(self) -> float:
        """Return when the run was launched, as `bind` was told; else when the host began it, 0 where nobody says."""
        told = read_json(self.folder / "client.json").get("launched")
        return told if isinstance(told, float) else self.began() or 0.0

    # following. A cursor is what this client has been told of a file. Other clients may write the same mirror: what lies
    # there is held against the cursor, and where it is another, it is taken up as it lies and asked for again.

    def load(self) -> list[Event]:
        """Begin anew: take up the cursors from what lies on the disk; return the events that are there already.

        Raises RunError where the disk refuses.
        """
        self._cursors, self._unread, self._from = {}, {}, 0
        events: list[Event] = []
        for path in sorted([*self.folder.glob("[0-9]*/*"), *self.folder.glob("[0-9]*/*/*")]):
            name = path.relative_to(self.folder).as_posix()
            if _MIRRORED.fullmatch(name):
                with self.disk_errors(path):
                    data = self._take_up(name)
                if path.name == "events.jsonl":
                    events += self._complete(name, data)
                elif path.name == "log.txt":
                    self._text(name, data[-3:])  # where its last character may be unfinished
        return events

    def _take_up(self, name: str) -> bytes:
        """Make a file's cursor what lies on the disk; return what is new of it to this client."""
        known, data = self._cursors.pop(name, None), self._read(name)
        if data is None:
            return b""
        self._cursors[name] = now = _cursor(name, data)
        if "offset" not in now:
            return b""
        seen = known["offset"] if known else 0
        if known != _cursor(name, data[:seen]):
            self._unread.pop(name, None)  # another file than the one that we knew
            seen = 0
        return data[seen:]

    def request(self) -> dict[str, Any]:
        """Return the arguments of a `read`: what we have, and from which folder on we want more."""
        folders = {name: name.partition("/")[0] for name in self._cursors if "/" in name}
        wanted = {name: self._cursors[name] for name, folder in folders.items() if int(folder) >= self._from}
        has_plan = (self.folder / "plan.json").exists()
        return {"cursors": wanted, "from": self._from, "state": self._seen_state, "plan": has_plan}

    def apply(self, answer: Reply) -> News:
        """Write an answer's parts to the disk, and return what they say.

        Raises ConnectionLostError when the answer is none of ours: a path that no mirror has, a gap; RunError where
        the disk refuses.
        """
        try:
            told = _Reading.model_validate(answer.values, strict=True)
            state = RunState.lenient(told.state)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConnectionLostError(
                "", f"the host sent what is no reading: {where}: {first['msg']}"
            ) from error
        pieces = self._cut(told.parts, answer.payload)
        events: list[Event] = []
        log: list[str] = []
        is_taken = True
        with self.alone("mirror") if pieces else contextlib.nullcontext():
            for name, offset, sent in pieces:
                with self.disk_errors(self.folder / name):
                    is_put = self._put(name, offset, sent)
                    data = sent if is_put else self._take_up(name)
                is_taken = is_taken and is_put
                if name.endswith("events.jsonl"):
                    events += self._complete(name, data)
                elif name.endswith("log.txt"):
                    log.append(self._text(name, data))
        if is_taken and not told.is_full and told.last:
            self._from = told.last[0]
        self._seen_state = [state.state, state.reason, state.attempt]
        state = state.model_copy(update={"rehearsed": self.plan().rehearsed})
        return News(state, events, "".join(log), is_all=not told.is_full and not told.parts)

    def _cut(self, parts: list[_Part], payload: bytes) -> list[tuple[str, int, bytes]]:
        """Return each part's name, offset and bytes. Raises ConnectionLostError for what we cannot have asked for."""
        pieces = []
        position = 0
        for part in parts:
            data = payload[position : position + part.size]
            position += part.size
            if not _MIRRORED.fullmatch(part.path) or len(data) != part.size:
                raise ConnectionLostError("", f"the host sent what no run has: {part.path!r}")
            if part.offset not in (0, self._cursors.get(part.path, {}).get("offset")):
                raise ConnectionLostError(
                    "", f"the host sent {part.path} from {part.offset}, which leaves a gap"
                )
            pieces.append((part.path, part.offset, data))
        return pieces

    def _put(self, name: str, offset: int, data: bytes) -> bool:
        """Write a piece to the disk; False, and nothing written, where another client has made the file another."""
        if name.endswith(".json"):
            there = self._read(name)
            if there != data:
                if self._cursors.get(name) != (None if there is None else _cursor(name, there)):
                    return False
                self._write(name, data)
            self._cursors[name] = _cursor(name, data)
            return True
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        known = self._cursors.get(name, _cursor(name, b""))
        with path.open("r+b" if path.exists() else "x+b") as file:
            is_as_known = _cursor_at(file, known["offset"]) == known
            file.seek(offset)
            there = file.read(len(data))
            agrees = data.startswith(there)
            if offset and not (is_as_known and agrees):
                return False
            if offset == 0:
                self._unread.pop(name, None)
                if not agrees or (known["offset"] and is_as_known):
                    file.truncate(0)  # the host's file begins again
                    there = b""
            file.seek(offset + len(there))
            file.write(data[len(there) :])  # another client may have written a part of it, and more behind it
            self._cursors[name] = _cursor_at(file, offset + len(data))
        return True

    def _read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        write_whole(self.folder / name, data)

    def _complete(self, name: str, data: bytes) -> list[Event]:
        """Parse the complete lines; an unfinished last one is kept for the next piece."""
        *lines, rest = (self._unread.get(name, b"") + data).split(b"\n")
        self._unread[name] = rest
        return [event for event in map(parse_event, lines) if event is not None]

    def _text(self, name: str, data: bytes) -> str:
        """Decode a piece of a log; an unfinished last character is kept for the next piece."""
        data = self._unread.get(name, b"") + data
        text, size = codecs.utf_8_decode(data, "replace")
        self._unread[name] = data[size:]
        return text

    # reading

    def plan(self) -> PlanSummary:
        """Return what is told of the plan, nothing where it has not been fetched."""
        return PlanSummary.lenient(read_json(self.folder / "plan.json"))

    def whole_plan(self) -> Plan:
        """Return the plan as it was made. Raises BadFileError for one that this version does not understand."""
        from launcher.planning import complete
        from launcher.values.parsing import build
        from launcher.values.plan import Plan

        file = f"the plan of {self.run}"
        record = read_json(self.folder / "plan.json")
        try:
            record = complete(record)
        except ValidationError:
            pass  # `build` says what is wrong with it
        return build(Plan, record, file=file)

    def state(self) -> RunState | None:
        """Return the last state that was fetched; `None` if there is none."""
        numbers = sorted(self.folder.glob("[0-9][0-9][0-9][0-9]*"))
        return _state(read_json(numbers[-1] / "state.json")) if numbers else None

    def began(self) -> float | None:
        """Return when the run was made, by the host's clock."""
        return FolderStart.lenient(read_json(self.folder / "0001" / "attempt.json")).time

    def parent(self) -> Parent | None:
        """Return the run that this one continues, None where it continues none or that has not been fetched."""
        return parent_of(self.folder)

    def events(self) -> Iterator[Event]:
        """Yield all fetched events, oldest folder first."""
        for path in self._of_all_nodes("events.jsonl"):
            with path.open("rb") as file:
                for line in file:
                    event = parse_event(line)
                    if event is not None:
                        yield event

    def logs(self) -> list[Path]:
        """Return the fetched logs, oldest attempt first."""
        return self._of_all_nodes("log.txt")

    def _of_all_nodes(self, name: str) -> list[Path]:
        """Return a file of every numbered folder, oldest first; the leader's before those of the other nodes."""
        paths = [*self.folder.glob(f"[0-9]*/{name}"), *self.folder.glob(f"[0-9]*/*/{name}")]
        return sorted(paths, key=lambda path: path.relative_to(self.folder).parent.parts)


def parent_of(folder: Path) -> Parent | None:
    """Return the run that the run of a mirror's folder continues, as far as that has been fetched."""
    return FolderStart.lenient(read_json(folder / "0001" / "attempt.json")).parent


def _state(values: object) -> RunState | None:
    """Return a state without its malformed fields; `None` if what remains is not a state."""
    try:
        return RunState.lenient(values)
    except ValidationError:
        return None


def parse_event(line: bytes) -> Event | None:
    """Return the event of a line; None for one that is no event of any version."""
    try:
        return _EVENT.validate_json(line)
    except ValidationError:
        return None


def mirrors() -> list[Mirror]:
    """Return all runs of this client, the latest launched last."""
    folder = runs_folder()
    found = [path for path in folder.glob("*/client.json") if RUN_ID.fullmatch(path.parent.name)]
    return sorted(
        (Mirror(path.parent.name, folder) for path in found),
        key=lambda mirror: (mirror.launched(), mirror.run),
    )


def find(word: str, names: list[str]) -> str:
    """Return the run that a word means: `last`, or the start of its id or of its last four letters.

    `names` has the latest last. Raises UnknownNameError for none, UsageError for several.
    """
    if word == "last":
        if not names:
            raise UnknownNameError("there is no run yet\n  begin one   launch")
        return names[-1]
    found = [name for name in names if name.startswith(word) or name.rpartition("-")[2].startswith(word)]
    if not word:
        found = []
    exact = [name for name in found if word in (name, name.rpartition("-")[2])]
    if len(exact) == 1:
        return exact[0]
    if not found:
        raise UnknownNameError(
            f"no run '{word}' here\n  look   launch ps     or on a host   launch ps --host HOST"
        )
    if len(found) > 1:
        raise UsageError(f"'{word}' means {len(found)} runs: {', '.join(found[:8])}\n  write more of it")
    return found[0]


def _cursor(name: str, data: bytes) -> dict[str, Any]:
    """Return the cursor of a client that has these bytes of a file, from its start."""
    if name.endswith(".json"):
        return {"sha256": hashlib.sha256(data).hexdigest()}
    return {"offset": len(data), "sha256": hashlib.sha256(data[-TAIL:]).hexdigest()}


def _cursor_at(file: IO[bytes], offset: int) -> dict[str, Any]:
    """Return the cursor of a client that has a growing file up to an offset."""
    before = min(TAIL, offset)
    file.seek(offset - before)
    return {"offset": offset, "sha256": hashlib.sha256(file.read(before)).hexdigest()}
