"""The local copy of a run: its folder, its index entry, and its record. `record_sync` fetches the record."""

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
from launcher.copy.index_folder import next_number
from launcher.copy.record_sync import PLAN, RecordSync
from launcher.copy.run_files import MAX_JSON, RunFiles
from launcher.copy.run_id import RUN_ID
from launcher.copy.run_record import RunRecord
from launcher.copy.runs_folder import folder_with, make_runs_folder
from launcher.errors import BadFileError, NoRunError, OtherRootError, RunError
from launcher.values.host import Host
from launcher.values.record import RunState, State, is_terminal

if TYPE_CHECKING:
    from launcher.values.plan import Plan

REACHED = ".mirror.lock"
"""The modification time of this file is the time of the host's last answer to this client."""
REACHED_S = 2.0


class LocalCopy:
    """The local copy of one run."""

    def __init__(self, run: str, folder: Path) -> None:
        """Create the object; no file is read or made. Raises ValueError if `run` is not a run id."""
        if not RUN_ID.fullmatch(run):
            raise ValueError(f"{run!r} is not a run id")
        self.run = run
        self.folder = folder / run
        self.files = RunFiles(self.folder, folder)
        self.records = RunFiles(index.place(run), index.folder())
        """This user's records of the run, beside its entry in the index.

        `files`, in contrast, is untrusted data.
        """
        self.told: RunState | None = None
        """The host's last report about the run, which may contain derived states that no record has.

        None before the first report.
        """
        self._noted_reached = -REACHED_S
        self._may_have_begun = True

    # Computed on use: a list of thousands of runs needs none of them.

    @property
    def artifacts(self) -> Path:
        """The folder of the run's artifacts here."""
        return self.folder / "artifacts"

    @property
    def outputs(self) -> Path:
        """The folder of the run's other output files here."""
        return self.folder / "outputs"

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints here."""
        return self.folder / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's files."""
        return self.folder / "tensorboard"

    @property
    def picture(self) -> Path:
        """The picture of the run's curves."""
        return self.folder / "loss.png"

    def place(self, path: str) -> Path:
        """Return the local path of a run's file, from its path below the run's work/ on the host."""
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

    # one local copy, several clients

    @contextlib.contextmanager
    def alone(self, errand: str) -> Iterator[None]:
        """Hold the lock of a task, so that only one client of this local copy performs the task at a time.

        The lock ends with its process. Raises RunError on a disk error.
        """
        path = self.folder / f".{errand}.lock"
        with contextlib.ExitStack() as stack:
            with self.disk_errors(path):
                self.make_folder()
                fcntl.flock(stack.enter_context(self.files.open(path, "ab")), fcntl.LOCK_EX)
            yield

    def make_folder(self) -> None:
        """Make the folder of this local copy, and add it to the index. Raises OSError."""
        if self.files.is_folder():
            return
        make_runs_folder(self.folder.parent)
        self.files.make_folder()
        if (entry := self.entry) is not None:
            index.update(entry, copies=tuple(dict.fromkeys((*entry.copies, str(self.folder.parent)))))

    @contextlib.contextmanager
    def disk_errors(self, path: Path) -> Iterator[None]:
        """Turn an error of this machine's disk into a RunError that names the path or its obstacle."""
        try:
            yield
        except UnreadableError as error:
            mend = shlex.join(["rm", "-r", self.files.in_the_way(error.filename)])
            raise RunError(f"{error.filename} {error.strerror}\n  remove the obstacle   {mend}") from error
        except OSError as error:
            words = "nothing was begun; fix this, then repeat the command"
            if self._may_have_begun:
                words = f"the run is not affected; when this is fixed   launch attach {self.short}"
            raise RunError(f"{error.filename or path}: {error.strerror or error}\n  {words}") from error

    # the run's index entry

    @property
    def entry(self) -> index.IndexEntry | None:
        """The run's entry in this user's index; None for a foreign run."""
        return index.find(self.run)

    def bind(self, host: Host, root_id: str, plan: Plan, batch: str | None = None) -> None:
        """Add a new run to the index, with its host, root and plan, and make its folder with the plan.

        All of it is durable on return. The run may begin only after that: otherwise a crash of this computer could
        lose the record of its host.
        `batch` is the batch that the run belongs to. The run becomes this user's latest launch, unless it is in
        the index already. Raises RunError on a disk error.
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
                index.forget(self.run)  # the run will not begin
            raise
        self._may_have_begun = True

    def bind_seen(self, host: Host, root_id: str, launched: float | None) -> None:
        """Like `bind`, for an existing run of a host; `launched` is its launch time in the host's record.

        The entry keeps its host, even if the run was found under another host name; under the same name the
        host is updated. Raises OtherRootError if the run, or its local copy, belongs to another root.
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
        """Add an entry to the index, or update the existing one."""
        before = self.entry
        if before is None:
            self._check_copy(made)
            try:
                index.create(made)
            except FileExistsError:  # another command has just added it
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
        """Raise OtherRootError if the local copy has a `client.json`, of an older version, that names another root."""
        root = self.files.read_json("client.json").get("root")
        if isinstance(root, str) and root not in ("", made.root):
            raise OtherRootError(self._other_root(made.host.name))

    def note_reached(self) -> None:
        """Record that the run's host has just answered. A failed write is ignored."""
        now = time.monotonic()
        if now - self._noted_reached < REACHED_S:
            return
        self._noted_reached = now
        with contextlib.suppress(OSError):
            self.files.touch(REACHED)

    def reached(self) -> float | None:
        """Return the time of the host's last answer to this client, in seconds since 1970; None if unknown."""
        status = self.files.status(REACHED)
        return None if status is None else status.st_mtime

    def is_in(self, root_id: str) -> bool:
        """Return whether the run is in the root with this id.

        True if its root is unknown, as for a foreign run.
        """
        entry = self.entry
        return entry is None or entry.root in ("", root_id)

    def may_be_in(self, root_id: str) -> bool:
        """Return whether the run may still be in the root with this id: it was not removed from its host."""
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
        """Whether the local copy has a plan, from any source."""
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
        """Return the sort key of this user's runs: the number of the launch, its time, the id.

        Foreign runs are the oldest.
        """
        entry = self.entry
        return (0, self.record.began() or 0.0, self.run) if entry is None else entry.place_in_order

    def order(self) -> int:
        """Return the number of this user's launch; 0 for a run of another client, and for a foreign run."""
        return self.place_in_order()[0]

    def mark_freed(self) -> None:
        """Record that the run was removed from its host. Raises RunError on a disk error."""
        with self.disk_errors(index.place(self.run)):
            if (entry := self.entry) is not None:
                index.update(entry, freed=time.time())
        with self.disk_errors(self.folder):
            self.files.touch()  # a cached row of `ps` is valid while its folder is unchanged

    @property
    def is_freed(self) -> bool:
        """Whether the run was removed from its host, so that only this local copy is left."""
        entry = self.entry
        return entry is not None and entry.freed is not None

    def check_not_freed(self) -> None:
        """Raise NoRunError with the next commands if the run was removed from its host."""
        if self.is_freed:
            words = f"{self.short} was removed from {self.host().name}"
            raise NoRunError(f"{words}\n  {after_removal(self.run)}")

    @property
    def is_scheduled(self) -> bool:
        """Whether a cluster's scheduler starts the run, so that it may wait in a queue."""
        return (entry := self.entry) is not None and entry.host.has_queue

    def host(self) -> Host:
        """Return the run's host.

        Raises RunError for a foreign run, and for a run on another machine's host `local`.
        """
        entry = self.entry
        if entry is None:
            raise index.not_known(self.run, self.folder)
        if entry.elsewhere is not None:
            raise RunError(
                f"{self.run} is on {entry.elsewhere}, where it was launched; this machine is {index.this_machine()}\n"
                f"  type the command there; if this machine has the same home   launch attach --host {entry.host.name} {self.short}"
            )
        return entry.host

    def remove(self) -> None:
        """Remove this local copy, and the run from the index if it was the last copy. Raises OSError."""
        self.files.remove_tree()
        if (entry := self.entry) is not None:
            left = tuple(one for one in entry.copies if LocalCopy(self.run, Path(one)).files.is_folder())
            if left:
                index.update(entry, copies=left)
            else:
                index.forget(self.run)

    def launched(self) -> float:
        """Return the time of the launch, from `bind` or else from the host's record; 0 if unknown."""
        return self.place_in_order()[1]

    def took_s(self) -> float | None:
        """Return the running time of the run over all its attempts, up to its host's last answer if it still runs.

        Time in a scheduler's queue, between attempts, or in a wait for disk space or a card does not count. None if
        nothing of the run's record is here.
        """
        began, launched, reached = self.record.began(), self.launched(), self.reached()
        return self.record.took_s(None if began is None or reached is None else reached - launched + began)

    @functools.cached_property
    def record(self) -> RunRecord:
        """The part of the run's record that is in this local copy."""
        return RunRecord(self.files, self.disk_errors)

    @functools.cached_property
    def sync(self) -> RecordSync:
        """The synchronization of the run's record from its host."""
        return RecordSync(self)

    def whole_plan(self) -> Plan:
        """Return the whole plan.

        Raises BadFileError if this version does not understand it, or if it differs from the plan in the
        index.
        """
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
            record = parse_object(self.files.read(PLAN, MAX_JSON))
        except FileNotFoundError:
            record = {}
        except OSError as error:
            raise BadFileError(f"{error.filename} {error.strerror}") from error
        try:
            record = complete(record)
        except ValidationError:
            pass  # `build` explains the error
        return build(Plan, record, file=file)

    def state(self) -> RunState | None:
        """Return the last fetched state; `None` if no state was fetched.

        A run that was removed before its end was recorded (the disk may have been full) counts as stopped, as
        does a removed run without any fetched state.
        """
        state = self.record.last_state()
        if (state is None or not is_terminal(state.state)) and self.is_freed:
            return (state or RunState(state=State.PREPARING)).model_copy(update={"state": State.STOPPED})
        return state


def after_removal(run: str) -> str:
    """Return the commands that still work for a run that was removed from its host."""
    short = run.rpartition("-")[2]
    return f"its local copy   launch ls {short}     from its start   launch rerun {short}"


def local_copy_of(run: str, copies: Iterable[str] = ()) -> LocalCopy:
    """Return the local copy of a run; `copies` are other folders to search if this command's runs folder has none."""
    return LocalCopy(run, folder_with(run, copies))


def local_copies() -> list[LocalCopy]:
    """Return the local copies of all runs of this user, the latest launched last."""
    return [local_copy_of(entry.run, entry.copies) for entry in index.entries()]


def run_ids() -> list[str]:
    """Return the ids of all runs of this user, sorted."""
    return sorted(index.runs())


def _last_number() -> int:
    """Return the number of this user's last launch, from the index."""
    return max((entry.order for entry in index.entries()), default=0)
