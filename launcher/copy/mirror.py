"""The client's copy of a run: where it lies, its entry in the index, and what its record says; see `record_sync` for how that comes."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from launcher.base.client_files import UnreadableError
from launcher.base.json_file import parse_object
from launcher.base.whole_file import sync
from launcher.copy import index
from launcher.copy.launch_count import next_number
from launcher.copy.record_sync import PLAN, RecordSync
from launcher.copy.run_files import MOST_JSON, RunFiles
from launcher.copy.run_id import RUN_ID
from launcher.copy.run_record import RunRecord
from launcher.copy.runs_folder import folder_with, make_runs_folder
from launcher.errors import BadFileError, OtherRootError, RunError
from launcher.values.host import Host
from launcher.values.record import RunState, State, is_terminal

if TYPE_CHECKING:
    from launcher.values.plan import Plan

REACHED = ".mirror.lock"
"""The time of change of this file says when the run's host last answered this client."""
REACHED_S = 2.0


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
    def entry(self) -> index.IndexEntry | None:
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
                self.files.write(PLAN, content)
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

    def _entry_for(self, host: Host, root_id: str, launched: float) -> index.IndexEntry:
        is_here = host.is_local and host.kind == "machine"
        return index.IndexEntry(
            run=self.run,
            host=host,
            machine=index.this_machine() if is_here else None,
            root=root_id,
            launched=launched,
            copies=(str(self.folder.parent),),
        )

    def _enter(self, made: index.IndexEntry) -> None:
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

    def _check_copy(self, made: index.IndexEntry) -> None:
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

    def _has_known_plan(self, entry: index.IndexEntry) -> bool:
        content = self.record.read(PLAN)
        return content is not None and hashlib.sha256(content).hexdigest() == entry.plan

    def place_in_order(self) -> tuple[int, float, str]:
        """Return what orders the runs of this user: the number of the launch, its time, the id. A foreign one is the oldest."""
        entry = self.entry
        return (0, self.record.began() or 0.0, self.run) if entry is None else entry.place_in_order

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
    def is_scheduled(self) -> bool:
        """Whether a cluster's scheduler starts the run: it may wait in a queue."""
        return (entry := self.entry) is not None and entry.host.has_queue

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
            began = self.record.began()
            return max(0.0, state.time - began) if state.time is not None and began is not None else None
        launched, reached = self.launched(), self.reached()
        return max(0.0, reached - launched) if launched and reached is not None else None

    @functools.cached_property
    def record(self) -> RunRecord:
        """What the run's record says, as far as it is here."""
        return RunRecord(self.files, self.disk_errors)

    @functools.cached_property
    def sync(self) -> RecordSync:
        """What brings the run's record here from its host."""
        return RecordSync(self)

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
        state = self.record.last_state()
        if (state is None or not is_terminal(state.state)) and self.is_freed:
            return (state or RunState(state=State.PREPARING)).model_copy(update={"state": State.STOPPED})
        return state

    def attempts_s(self) -> float | None:
        """Return how long the attempts of a run took together whose job waits in a scheduler's queue; None of any other run.

        It is by the clock of their hosts; the last one may go on. One whose agent died ends with the last thing that it reported.
        """
        if not self.is_scheduled:
            return None
        began, launched, reached = self.record.began(), self.launched(), self.reached()
        return self.record.attempts_s(
            None if began is None or reached is None else reached - launched + began
        )


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
