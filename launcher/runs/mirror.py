"""The client's copy of a run: its plan and its numbered folders, byte for byte, fetched by cursor.

A cursor says how much of a file this client has. Several clients may write one mirror, so a client compares its cursor
with the disk before it writes: a file that another client changed is read again instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple, NotRequired, TypedDict

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from launcher.client_files import UnreadableError
from launcher.errors import BadFileError, ConnectionLostError, OtherRootError, RunError
from launcher.hosts.channel import Reply
from launcher.runs import index
from launcher.runs.json_file import MOST_BYTES, parse_object
from launcher.runs.launch_count import next_number
from launcher.runs.printed_lines import Printed, PrintedLines
from launcher.runs.run_files import MOST_JSON, RunFiles, lines_of
from launcher.runs.run_id import RUN_ID
from launcher.runs.runs_folder import folder_with, make_runs_folder
from launcher.runs.whole_file import sync
from launcher.values.base import Record
from launcher.values.host import Host
from launcher.values.record import Event, FolderStart, Parent, PlanSummary, RunState, State, is_terminal

if TYPE_CHECKING:
    from launcher.values.plan import Plan

PLAN = "plan.json"
REACHED = ".mirror.lock"
"""The time of change of this file says when the run's host last answered this client."""
REACHED_S = 2.0
TAIL = 4096
MOST_LOOKED_BACK = 8
LOOKED_BACK_BYTES = 65_536
"""So many folders, and so much of the events of each, are searched for the last step."""
_NODE = r"(?:[a-z0-9][a-z0-9-]{0,62}/)?"
_MIRRORED = re.compile(
    rf"plan\.json|[0-9]{{4,9}}/{_NODE}(?:attempt\.json|state\.json|events\.jsonl|log\.txt)"
)
_GROWING = (".jsonl", ".txt")
MOST_GROWN = 2 << 30
"""The most bytes of events, and of a log, that are read."""
_EVENT = TypeAdapter(Event)
_EVENTS = TypeAdapter(list[Event], config=ConfigDict(defer_build=True))


class Reached(NamedTuple):
    """The step that a run has reached, and its loss there, as far as they are known."""

    step: int | None = None
    loss: float | str | None = None


class News(NamedTuple):
    """What one answer brought: the run's state, complete events, and complete lines that the training printed.

    `unfinished` is the start of a line that is not complete yet, `is_full` whether there was more than one answer holds,
    `size` the bytes that came.
    """

    state: RunState
    events: list[Event]
    log: list[Printed]
    is_all: bool
    unfinished: str = ""
    is_full: bool = False
    size: int = 0


class _Part(Record):
    """A piece of a file: JSON files come whole, the others grow from an offset in bytes."""

    path: str
    offset: Annotated[int, Field(ge=0)]
    size: Annotated[int, Field(ge=0)]


class Cursor(TypedDict):
    """How much a client has of a file that grows, and the digest of the end of that; of a JSON file, the digest of all of it."""

    offset: NotRequired[int]
    sha256: str


class _Update(Record):
    """The agent's answer to `read`; the bytes of the parts follow in their order."""

    state: dict[str, Any]
    parts: list[_Part] = []
    last: Annotated[list[int], Field(max_length=1)] = []
    is_full: bool = False


class Mirror:
    """One run's folder on the client."""

    def __init__(self, run: str, folder: Path) -> None:
        """Name the mirror of a run; nothing is read or made. Raises ValueError if `run` is not a run id."""
        if not RUN_ID.fullmatch(run):
            raise ValueError(f"{run!r} is not a run id")
        self.run = run
        self.folder = folder / run
        self.files = RunFiles(self.folder, folder)
        self.records = RunFiles(index.place(run), index.folder())
        """This user's own records of the run, beside its entry in the index; `files` is data."""
        self._cursors: dict[str, Cursor] = {}
        self._from = 0
        self._unread: dict[str, bytes] = {}
        self._printed = PrintedLines(self.files)
        self._seen_state: list[Any] | None = None
        self._plan: PlanSummary | None = None
        self.told: RunState | None = None
        """What the host said last of the run: it may derive what no record says. None before it was asked."""
        self._noted_reached = -REACHED_S
        self._may_have_begun = True

    # Made when they are asked for: a list of thousands of runs needs none of them.

    @property
    def artifacts(self) -> Path:
        """Where the run's artifacts are here."""
        return self.folder / "artifacts"

    @property
    def outputs(self) -> Path:
        """Where the other files are that it wrote."""
        return self.folder / "outputs"

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints are."""
        return self.folder / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's files."""
        return self.folder / "tensorboard"

    @property
    def picture(self) -> Path:
        """The picture of its curves."""
        return self.folder / "loss.png"

    def place(self, path: str) -> Path:
        """Return where a file of the run has its place here, by its path below the run's work/ on the host."""
        top, _, rest = path.partition("/")
        if top == "artifacts":
            return self.artifacts / rest
        if top == "checkpoints":
            return self.checkpoints / rest
        return self.outputs / {"home": "HOME", "work": "WORK"}.get(top, "") / rest

    @property
    def short(self) -> str:
        """The last part of the id, enough to name the run."""
        return self.run.rpartition("-")[2]

    # one mirror, several clients

    @contextlib.contextmanager
    def alone(self, errand: str) -> Iterator[None]:
        """Hold the lock of an errand, so that one client of this mirror does it at a time. It ends with its process.

        Raises RunError if the disk refuses.
        """
        path = self.folder / f".{errand}.lock"
        with contextlib.ExitStack() as stack:
            with self.disk_errors(path):
                self.make_folder()
                fcntl.flock(stack.enter_context(self.files.open(path, "ab")), fcntl.LOCK_EX)
            yield

    def make_folder(self) -> None:
        """Make the folder of this copy, and have the index know it. Raises OSError."""
        if self.files.is_folder():
            return
        make_runs_folder(self.folder.parent)
        self.files.make_folder()
        if (entry := self.entry) is not None:
            index.update(entry, copies=tuple(dict.fromkeys((*entry.copies, str(self.folder.parent)))))

    @contextlib.contextmanager
    def disk_errors(self, path: Path) -> Iterator[None]:
        """Turn an error of this machine's disk into a RunError that names the path, or what is in the way there."""
        try:
            yield
        except UnreadableError as error:
            mend = shlex.join(["rm", "-r", self.files.in_the_way(error.filename)])
            raise RunError(
                f"{error.filename} {error.strerror}\n  remove what is in the way   {mend}"
            ) from error
        except OSError as error:
            words = "nothing was begun; when this is fixed, the same again"
            if self._may_have_begun:
                words = f"the run is not affected; when this is fixed   launch attach {self.short}"
            raise RunError(f"{error.filename or path}: {error.strerror or error}\n  {words}") from error

    # the run's place in the index

    @property
    def entry(self) -> index.Entry | None:
        """The run's entry in the index of this user's runs; None of a foreign run."""
        return index.find(self.run)

    def bind(self, host: Host, root_id: str, plan: Plan, batch: str | None = None) -> None:
        """Enter a run that is about to begin into the index, with its host, root and plan, and make the folder with the plan.

        It is on the disk when this returns: a run may begin only then, for without it nobody here knows where it would be.
        `batch` is the batch that it is a run of. The run becomes the last that this user launched, unless it was entered before. Raises RunError if the disk refuses.
        """
        content, was_known = plan.to_file(), self.entry is not None
        self._may_have_begun = False
        with self.disk_errors(index.place(self.run)):
            made = self._entry_for(host, root_id, time.time()).model_copy(
                update={
                    "plan": hashlib.sha256(content).hexdigest(),
                    "batch": batch,
                    "order": next_number(index.folder(), _last_number),
                }
            )
            self._enter(made)
        try:
            with self.disk_errors(self.folder), self.alone("mirror"):
                self._write(PLAN, content)
                self.files.sync(PLAN, "")
                sync(self.folder.parent)
        except RunError:
            if not was_known:
                index.forget(self.run)  # it does not begin
            raise
        self._may_have_begun = True

    def bind_seen(self, host: Host, root_id: str, launched: float | None) -> None:
        """Like `bind`, for a run that its host has: `launched` is when, by the host's record.

        The entry keeps its host, by whatever other name the run was found; one of the same name is brought up to date.
        Raises OtherRootError if the run, or the copy of it that is here, is of another root.
        """
        with self.disk_errors(index.place(self.run)):
            self._enter(self._entry_for(host, root_id, launched or time.time()))
        with self.disk_errors(self.folder), self.alone("mirror"):
            pass

    def _entry_for(self, host: Host, root_id: str, launched: float) -> index.Entry:
        is_here = host.is_local and host.kind == "machine"
        return index.Entry(
            run=self.run,
            host=host,
            machine=index.this_machine() if is_here else None,
            root=root_id,
            launched=launched,
            copies=(str(self.folder.parent),),
        )

    def _enter(self, made: index.Entry) -> None:
        """Put an entry into the index, or bring the one that is there up to date."""
        before = self.entry
        if before is None:
            self._check_copy(made)
            try:
                index.create(made)
            except FileExistsError:  # another command was quicker
                before = self.entry
        if before is None:
            return
        self.check_root(made.host.name, made.root)
        is_same = made.host.name == before.host.name
        index.update(
            before,
            host=made.host if is_same else before.host,
            machine=made.machine if is_same else before.machine,
            plan=before.plan or made.plan,
            copies=tuple(dict.fromkeys((*before.copies, *made.copies))),
        )

    def _check_copy(self, made: index.Entry) -> None:
        """Raise OtherRootError if a copy that is here was made of a run in another root, as versions before the index wrote down."""
        root = self.files.read_json("client.json").get("root")
        if isinstance(root, str) and root not in ("", made.root):
            raise OtherRootError(self._other_root(made.host.name))

    def note_reached(self) -> None:
        """Note that the run's host has just answered. What the disk refuses is only not known later."""
        now = time.monotonic()
        if now - self._noted_reached < REACHED_S:
            return
        self._noted_reached = now
        with contextlib.suppress(OSError):
            self.files.touch(REACHED)

    def reached(self) -> float | None:
        """Return when the run's host last answered this client, in seconds since 1970; None if that is not known."""
        status = self.files.status(REACHED)
        return None if status is None else status.st_mtime

    def is_in(self, root_id: str) -> bool:
        """Whether the run is in the root with this id, as far as its root is known: that of a foreign run is not."""
        entry = self.entry
        return entry is None or entry.root in ("", root_id)

    def may_be_in(self, root_id: str) -> bool:
        """Whether the run may still be in the root with this id: it was not removed from its host."""
        return self.is_in(root_id) and not self.is_freed

    def check_root(self, host: str, root_id: str) -> None:
        """Raise OtherRootError unless the run is in the root with this id, on the host of this name."""
        if not self.is_in(root_id):
            raise OtherRootError(self._other_root(host))

    def _other_root(self, host: str) -> str:
        mend = (
            shlex.join(["rm", "-r", str(self.folder)])
            if self.entry is None
            else f"launch rm --here --force {self.short}"
        )
        return (
            f"{self.run} was launched in another root than the one that {host} has now; its copy is {self.folder}\n"
            f"  if that root was removed, its runs are gone; to remove the copy too   {mend}"
        )

    @property
    def has_plan(self) -> bool:
        """Whether the copy has a plan, be it anybody's."""
        return self.files.exists(PLAN)

    @property
    def has_own_plan(self) -> bool:
        """Whether the plan here is the one that this user made at the launch, not one that the host sent."""
        entry = self.entry
        return entry is not None and entry.order > 0 and self._has_known_plan(entry)

    def _has_known_plan(self, entry: index.Entry) -> bool:
        content = self._read(PLAN)
        return content is not None and hashlib.sha256(content).hexdigest() == entry.plan

    def place_in_order(self) -> tuple[int, float, str]:
        """Return what orders the runs of this user: the number of the launch, its time, the id. A foreign one is the oldest."""
        entry = self.entry
        return (0, self.began() or 0.0, self.run) if entry is None else entry.place_in_order

    def order(self) -> int:
        """Return the number of the launch among this user's; 0 for one of another client, and for a foreign run."""
        return self.place_in_order()[0]

    def mark_freed(self) -> None:
        """Remember that the run was removed from its host. Raises RunError if the disk refuses."""
        with self.disk_errors(index.place(self.run)):
            if (entry := self.entry) is not None:
                index.update(entry, freed=time.time())
        with self.disk_errors(self.folder):
            self.files.touch()  # a row that `ps` keeps counts while its folder is unchanged

    @property
    def is_freed(self) -> bool:
        """Whether the run was removed from its host, and only this copy is left."""
        entry = self.entry
        return entry is not None and entry.freed is not None

    @property
    def is_of_cluster(self) -> bool:
        """Whether the run is a job of a Slurm cluster."""
        entry = self.entry
        return entry is not None and entry.host.slurm is not None

    def host(self) -> Host:
        """Return the run's host. Raises RunError for a foreign run, and for one on the host `local` of another machine."""
        entry = self.entry
        if entry is None:
            raise index.not_known(self.run, self.folder)
        if entry.elsewhere is not None:
            raise RunError(
                f"{self.run} is on {entry.elsewhere}, where it was launched; this machine is {index.this_machine()}\n"
                f"  type it there; if this machine has the same home   launch attach --host {entry.host.name} {self.short}"
            )
        return entry.host

    def remove(self) -> None:
        """Remove this copy, and the run from the index if none of its other copies is there. Raises OSError."""
        self.files.remove_tree()
        if (entry := self.entry) is not None:
            left = tuple(one for one in entry.copies if Mirror(self.run, Path(one)).files.is_folder())
            if left:
                index.update(entry, copies=left)
            else:
                index.forget(self.run)

    def launched(self) -> float:
        """Return when the run was launched, by `bind` or else by the host's record; 0 if neither is known."""
        return self.place_in_order()[1]

    def took_s(self, state: RunState | None) -> float | None:
        """Return how long the run took by its last state, or, of one that goes on, had taken when its host last answered; None if unknown.

        The time in which its job waits in a scheduler's queue does not count.
        """
        if (attempts_s := self.attempts_s()) is not None:
            return attempts_s
        if state is not None and is_terminal(state.state):
            began = self.began()
            return max(0.0, state.time - began) if state.time is not None and began is not None else None
        launched, reached = self.launched(), self.reached()
        return max(0.0, reached - launched) if launched and reached is not None else None

    # following

    def load(self, shown: Mapping[str, int] | None = None) -> list[Event]:
        """Set the cursors from the files on the disk; return their events. Raises RunError if the disk refuses.

        With `shown`, what is beyond so many bytes of events and logs counts as not read yet.
        """
        return [
            event
            for name, data in self._load_files(shown)
            if name.endswith("events.jsonl")
            for event in self._complete(name, data)
        ]

    def load_cursors(self) -> None:
        """Set the cursors from the files on the disk, without reading the events. Raises RunError if the disk refuses."""
        for name, data in self._load_files(None):
            if name.endswith("events.jsonl"):
                self._unread[name] = data[data.rfind(b"\n") + 1 :]

    def _load_files(self, shown: Mapping[str, int] | None) -> Iterator[tuple[str, bytes]]:
        """Set the cursors; yield the name and the bytes of each file."""
        self._cursors, self._unread, self._from = {}, {}, 0
        self._printed = PrintedLines(self.files)
        state = self.state()
        has_ended = state is not None and is_terminal(state.state)
        for name in self._of_attempts():
            if _MIRRORED.fullmatch(name):
                most = None if shown is None or name.endswith(".json") else shown.get(name, 0)
                with self.disk_errors(self.folder / name):
                    data = self._read_again(name, most)
                if name.endswith("/log.txt") and not has_ended:
                    self._printed.skip(name, data)
                yield name, data

    def catch_up(self) -> tuple[list[Event], list[Printed]]:
        """Read what another client has written here since; return the events, and all lines: nothing follows."""
        events: list[Event] = []
        log: list[Printed] = []
        for name in self.sizes():
            with self.disk_errors(self.folder / name):
                data = self._read_again(name)
            if name.endswith("events.jsonl"):
                events += self._complete(name, data)
            else:
                log += self._printed.take(name, data)
        return events, log + self._printed.finish()

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file of events and each log that is here."""
        names = [*self.event_files(), *self.logs()]
        found = {name: self.files.status(name) for name in names}
        return {name: status.st_size for name, status in found.items() if status is not None}

    def read_sizes(self) -> dict[str, int]:
        """Return how many bytes of each of them were read."""
        return {name: cursor["offset"] for name, cursor in self._cursors.items() if "offset" in cursor}

    def _read_again(self, name: str, most: int | None = None) -> bytes:
        """Set a file's cursor from its first `most` bytes on the disk; return those that are new to this client."""
        previous, data = self._cursors.pop(name, None), self._read(name)
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

    def request(self) -> dict[str, Any]:
        """Return the arguments of a `read`: the cursors, and the first folder that is asked for."""
        folders = {name: name.partition("/")[0] for name in self._cursors if "/" in name}
        cursors = {name: self._cursors[name] for name, folder in folders.items() if int(folder) >= self._from}
        entry = self.entry  # a plan that is here counts only once its host has sent the same
        has_plan = (entry is None or bool(entry.plan)) and self.files.is_file(PLAN)
        return {"cursors": cursors, "from": self._from, "state": self._seen_state, "plan": has_plan}

    def apply(self, answer: Reply) -> News:
        """Write the parts of an answer to the disk; return what they contain.

        Raises ConnectionLostError for an answer that does not fit the request, such as an unknown path or a gap, and
        RunError if the disk refuses.
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
        self.note_reached()
        events: list[Event] = []
        log: list[Printed] = []
        is_complete = True
        with self.alone("mirror") if pieces else contextlib.nullcontext():
            for name, offset, sent in pieces:
                with self.disk_errors(self.folder / name):
                    is_written = self._put(name, offset, sent)
                    data = sent if is_written else self._read_again(name)
                is_complete = is_complete and is_written
                if name.endswith("events.jsonl"):
                    events += self._complete(name, data)
                elif name.endswith("log.txt"):
                    log += self._printed.take(name, data)
            if pieces:  # a file that grows, or one in a folder below, does not change the time of this folder
                with self.disk_errors(self.folder):
                    self.files.touch()
        if is_complete and not update.is_full and update.last:
            self._from = update.last[0]
        self._seen_state = [state.state, state.reason, state.attempt, state.trouble is not None]
        self.told = state = state.model_copy(update={"rehearsed": self.plan().rehearsed})
        is_all = not update.is_full and not update.parts
        if is_all and (is_terminal(state.state) or state.state in (State.WAITING, State.INTERRUPTED)):
            log += self._printed.finish()
        size = len(answer.payload)
        return News(state, events, log, is_all, self._printed.unfinished, update.is_full, size)

    def _cut(self, parts: list[_Part], payload: bytes) -> list[tuple[str, int, bytes]]:
        """Return each part's name, offset and bytes. Raises ConnectionLostError for a part that was not asked for."""
        pieces = []
        position = 0
        for part in parts:
            data = payload[position : position + part.size]
            position += part.size
            if not _MIRRORED.fullmatch(part.path) or len(data) != part.size:
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
            current = self._read(name)
            if current != data:
                if name == PLAN and current is not None:
                    raise RunError(
                        f"{self.run}: its host sent another plan than the one in {self.folder}, which stays"
                    )
                if self._cursors.get(name) != (None if current is None else _cursor(name, current)):
                    return False
                self._write(name, data)
            self._cursors[name] = _cursor(name, data)
            entry = self.entry if name == PLAN else None
            if entry is not None and not entry.plan:
                index.update(entry, plan=hashlib.sha256(data).hexdigest())
            return True
        self.files.make_folder(os.path.dirname(name))
        cursor = self._cursors.get(name, _cursor(name, b""))
        with self.files.open(name, "r+b" if self.files.exists(name) else "x+b") as file:
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
        """Keep what a host no longer has: after a loss of power its file may be shorter than this copy. A full disk keeps none."""
        number = 1
        while self.files.exists(aside := f"{name}.lost-{number}"):
            number += 1
        try:
            with self.files.open(name) as source, self.files.open(aside, "wb") as copy:
                shutil.copyfileobj(source, copy)
        except OSError:
            self.files.remove(aside)

    def _read(self, name: str) -> bytes | None:
        try:
            return self.files.read(name, MOST_GROWN if name.endswith(_GROWING) else MOST_BYTES)
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        self.files.write(name, data)

    def _complete(self, name: str, data: bytes) -> list[Event]:
        """Parse the complete lines; an unfinished last one is kept for the next piece."""
        *lines, rest = (self._unread.get(name, b"") + data).split(b"\n")
        self._unread[name] = rest
        return parse_events(lines)

    def _forget_unread(self, name: str) -> None:
        """Forget the start of an unfinished line of a file that begins again."""
        self._unread.pop(name, None)
        self._printed.forget(name)

    # reading

    def plan(self) -> PlanSummary:
        """Return the part of the plan that is shown; empty if the plan has not been fetched. Once it has been, it stays."""
        if self._plan is None and (record := self.files.read_json(PLAN)):
            self._plan = PlanSummary.lenient(record)
        return self._plan or PlanSummary()

    def whole_plan(self) -> Plan:
        """Return the whole plan. Raises BadFileError if this version does not understand it, or if it is not the one in the index."""
        from launcher.planning.allocation import complete
        from launcher.values.parsing import build
        from launcher.values.plan import Plan

        file = f"the plan of {self.run}"
        entry = self.entry
        if entry is not None and not self._has_known_plan(entry):
            raise BadFileError(
                f"{self.folder / PLAN} is not the plan of {self.run}\n"
                f"  move the folder away, then   launch attach {self.short}"
            )
        try:
            record = parse_object(self.files.read(PLAN, MOST_JSON))
        except FileNotFoundError:
            record = {}
        except OSError as error:
            raise BadFileError(f"{error.filename} {error.strerror}") from error
        try:
            record = complete(record)
        except ValidationError:
            pass  # `build` explains what is wrong
        return build(Plan, record, file=file)

    def state(self) -> RunState | None:
        """Return the last state that was fetched; `None` before the first.

        A run that was removed before the end was on record, as on a full disk, had been stopped; also one of which no state came.
        """
        numbers = self.files.numbered()
        state = _state(self.files.read_json(f"{numbers[-1]}/state.json")) if numbers else None
        if (state is None or not is_terminal(state.state)) and self.is_freed:
            return (state or RunState(state=State.PREPARING)).model_copy(update={"state": State.STOPPED})
        return state

    def last_step(self) -> Reached:
        """Return the last step that is on record here, with its loss, by the newest folders that know of one; else the last loss.

        A run's last record may be that of a contact, or of an attempt that was stopped before its first step.
        """
        loss: float | str | None = None
        for folder in self.files.numbered()[: -MOST_LOOKED_BACK - 1 : -1]:
            state = _state(self.files.read_json(f"{folder}/state.json"))
            if state is not None and state.step is not None and state.loss is not None:
                return Reached(state.step, state.loss)
            reported = _last_reported(self._end_of_events(folder))
            if state is not None and state.step is not None:
                return Reached(state.step, reported.loss)
            if reported.step is not None:
                return reported
            if loss is None:
                loss = reported.loss if state is None or state.loss is None else state.loss
        return Reached(None, loss)

    def began(self) -> float | None:
        """Return when the run was made, by the host's clock."""
        return FolderStart.lenient(self.files.read_json("0001/attempt.json")).time

    def job_id(self) -> str | None:
        """Return the id that Slurm gave the run's last job, by the newest folders; None elsewhere, and if no job is on record here."""
        for folder in self.files.numbered()[: -MOST_LOOKED_BACK - 1 : -1]:
            job_id = FolderStart.lenient(self.files.read_json(f"{folder}/attempt.json")).job_id
            if job_id is not None:
                return job_id
        return None

    def attempts_s(self) -> float | None:
        """Return how long the attempts of a run took together whose job waits in a scheduler's queue; None of any other run.

        It is by the clock of their hosts; the last one may go on. One whose agent died ends with the last thing that it reported.
        """
        if not self.is_of_cluster:
            return None
        began, launched, reached = self.began(), self.launched(), self.reached()
        now = None if began is None or reached is None else reached - launched + began
        total = 0.0
        folders = self.files.numbered()
        for folder in folders:
            attempt = self.files.read_json(f"{folder}/attempt.json")
            state = self.files.read_json(f"{folder}/state.json")
            begin, end = FolderStart.lenient(attempt).time, state.get("time")
            if attempt.get("kind") != "attempt" or begin is None or not isinstance(end, int | float):
                continue
            if state.get("state") in (State.PREPARING, State.RUNNING, State.STOPPING):
                last_time = now if folder == folders[-1] else _last_time(self._end_of_events(folder))
                end = max(end, last_time or end)
            total += max(0.0, end - begin)
        return total

    def parent(self) -> Parent | None:
        """Return the run that this one continues; `None` if it continues none, or if that has not been fetched yet."""
        return FolderStart.lenient(self.files.read_json("0001/attempt.json")).parent

    def events(self) -> Iterator[Event]:
        """Yield all fetched events, oldest folder first."""
        for name in self.event_files():
            with self.opened(name) as file:
                for line in lines_of(file):
                    event = parse_event(line)
                    if event is not None:
                        yield event

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open a file of events or a log, to read it line by line. Raises RunError if it cannot be read."""
        with self.disk_errors(self.folder / name), self.files.open(name, most=MOST_GROWN) as file:
            yield file

    def events_of_leader(self) -> list[str]:
        """Return the files of fetched events of the run's first node alone, oldest folder first."""
        return [name for name in self.event_files() if name.count("/") == 1]

    def event_files(self) -> list[str]:
        """Return the files of fetched events, oldest folder first."""
        return self._of_all_nodes("events.jsonl")

    def logs(self) -> list[str]:
        """Return the fetched logs, oldest attempt first."""
        return self._of_all_nodes("log.txt")

    def _of_all_nodes(self, name: str) -> list[str]:
        """Return a file of every numbered folder, oldest first; the leader's before those of the other nodes."""
        paths = [path for path in self._of_attempts() if path.rpartition("/")[2] == name]
        return sorted(paths, key=lambda path: path.split("/")[:-1])

    def _of_attempts(self) -> list[str]:
        """Return the path of everything in the numbered folders and in those of their nodes, sorted."""
        found = []
        for number in self.files.numbered():
            for name in self.files.names(number):
                inner = self.files.names(f"{number}/{name}") if "." not in name else []
                found += [f"{number}/{name}", *(f"{number}/{name}/{one}" for one in inner)]
        return found

    def _end_of_events(self, folder: str) -> bytes:
        """Return the last piece of a numbered folder's events; empty if there are none."""
        try:
            with self.files.open(f"{folder}/events.jsonl") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOOKED_BACK_BYTES))
                return file.read(LOOKED_BACK_BYTES)
        except OSError:
            return b""


def _last_reported(events: bytes) -> Reached:
    """Return the last step with a loss that the training reported in the end of its events; without any step, the last loss."""
    without_step = Reached()
    for line in reversed(events.splitlines()):
        event = parse_event(line)
        if event is None or event.kind != "metric" or event.rank != 0:
            continue
        loss = event.values.get("loss")
        if not isinstance(loss, int | float | str):
            continue
        if event.step is not None:
            return Reached(event.step, loss)
        without_step = without_step if without_step.loss is not None else Reached(None, loss)
    return without_step


def _last_time(events: bytes) -> float | None:
    """Return the time of the last event in the end of some events."""
    found = map(parse_event, reversed(events.splitlines()))
    return next((event.time for event in found if event is not None), None)


def _state(values: object) -> RunState | None:
    """Return a state without its malformed fields; `None` if what remains is not a state."""
    try:
        return RunState.lenient(values)
    except ValidationError:
        return None


def parse_event(line: bytes) -> Event | None:
    """Return the event of a line; `None` if the line is not an event."""
    try:
        return _EVENT.validate_json(line)
    except ValidationError:
        return None


def parse_events(lines: list[bytes]) -> list[Event]:
    """Return the events of lines, without what is not an event. Those of many are made at once, in half the time."""
    try:
        events = _EVENTS.validate_json(b"[%s]" % b",".join(lines))
    except ValidationError:
        events = []
    if len(events) == len(lines):
        return events
    return [event for event in map(parse_event, lines) if event is not None]


def mirror_of(run: str, copies: Iterable[str] = ()) -> Mirror:
    """Return the copy of a run; `copies` are the folders that may hold one where the runs folder of this command does not."""
    return Mirror(run, folder_with(run, copies))


def mirrors() -> list[Mirror]:
    """Return the copies of all runs of this user, the latest launched last."""
    return [mirror_of(entry.run, entry.copies) for entry in index.entries()]


def run_ids() -> list[str]:
    """Return the ids of all runs of this user, by name."""
    return sorted(index.runs())


def _last_number() -> int:
    """Return the number of the last launch of this user by the index."""
    return max((entry.order for entry in index.entries()), default=0)


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
