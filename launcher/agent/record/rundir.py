"""The run directory: the paths of its files, which only this module names, and its records.

    <root>/runs/<run-id>/
      control/   files that control the run: plan.json  prepared.json  manifest.json  settled  wish
                 token  contact.lock  digests.json  moved.json  service.json  slurm.json  slurm-end.json
      record/    the agent's record: NNNN/  secrets.env  hidden-names.json  keeper.lock  keeper.log
                 slurm.log  container.json  told-STATE
      work/      the job's files: code/  data  artifacts/  checkpoints/  home/

    NNNN/        one numbered folder, one writer: lock  sealed.json  attempt.json  state.json  events.jsonl
                 log.txt  heartbeat  precision.json  stacks.txt
    NNNN/<node>/ with several nodes, one node's report to the agent, which copies it to NNNN/:
                 reports.jsonl  output.txt  state.json  stacks.txt

A run recorded before 2026-11-22 has all of this in one folder, and is read as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Mapping, cast

from . import strict_json
from .files import read_json, read_text, remove_folder, write_durably, write_in_place, write_over
from .locks import Lock, is_locked
from .record_shape import ATTEMPT, SEALED, read_attempt, read_heartbeat, read_record, read_state
from .safe_open import RunPath, UnreadableError, open_up, opened_folder, status_of

if TYPE_CHECKING:
    from .run_records import AttemptRecord, HeartbeatRecord, PlanRecord, RentalEndRecord, StateRecord

VERSION = 1
TERMINAL = ("succeeded", "failed", "stopped", "stop-incomplete")
LIVE = ("preparing", "running", "stopping")
"""The recorded states in which an agent may be at work."""
RUN_ID = re.compile(
    r"[0-9]{6}-[a-z0-9](?:[a-z0-9-]{0,24}[a-z0-9])?-[a-z0-9]{6}|[0-9]{4}-[a-z0-9][a-z0-9_.-]{0,47}-[a-z0-9]{4}"
)
"""A run's id: at most 40 characters; the last six are random (31 bits). The second, longer form was used until 2026-11-22."""
MAX_NUMBER = 1 << 29
MAX_FOLDERS = 10_000
"""The numbered folders to read: the first, the last, and this many before the last."""
MAX_HISTORY = 4 << 20
"""The most bytes to read of one run's records: a job may make thousands of folders with large records."""
UNREADABLE = "unreadable"
"""The state of a run whose last record cannot be read; its evidence says why."""
NODE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
ONE_MACHINE, SHARED = "machine", "shared"
"""Where a run's locks are valid: on the machine that made its record, or on all that share its root."""
HEARTBEAT_S = 5.0
"""The interval of an agent's heartbeats."""
WISHES = {"run": None, "stop": "by-user", "cancel": "by-user-now"}
"""The wishes that a user can have for a run, each with the reason that is recorded if it ends the run."""
SESSION_LIMIT = "session-limit"
"""The reason of a run that continues because a service's session, or a Slurm job, reached its time limit."""
RENTED = "rented.json"
"""The file with the end of a rental, by the machine's clock.

It is in the root on a rented machine, and in each run there whose rental was extended.
"""
SMALL_FILES = ("attempt.json", "state.json")
GROWING_FILES = ("events.jsonl", "log.txt")


def rent_in(record: Mapping[str, Any], start: str = "") -> RentalEndRecord:
    """Return the end of a rental from a record. `start` is the prefix of the record's keys."""
    until: Any = record.get(start + "until")
    uptime: Any = record.get(start + "uptime")
    boot: Any = record.get(start + "boot")
    if not _is_number(until):
        return {}
    if not _is_number(uptime) or not isinstance(boot, str):
        return {"until": until}
    return {"until": until, "uptime": uptime, "boot": boot}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Run:
    """The paths of one run below a root."""

    def __init__(self, path: str) -> None:
        """Derive the paths below `path`; make nothing."""
        self.path = path
        self.id = os.path.basename(path)
        is_flat = not os.path.exists(os.path.join(path, "control")) and any(
            os.path.exists(os.path.join(path, name)) for name in ("plan.json", "0001")
        )
        top = RunPath(path, path)
        self.control, self.record, self.work = (
            (top,) * 3 if is_flat else (top.below(name) for name in ("control", "record", "work"))
        )
        self.plan = self.control.below("plan.json")
        self.wish = self.control.below("wish")
        self.rented = self.control.below(RENTED)
        self.token = self.control.below("token")
        self.prepared_record = self.control.below("prepared.json")
        self.digests = self.control.below("digests.json")
        self.moved = self.control.below("moved.json")
        self.service = self.control.below("service.json")
        self.slurm = self.control.below("slurm.json")
        self.slurm_end = self.control.below("slurm-end.json")
        self.secrets = self.record.below("secrets.env")
        self.hidden_names = self.record.below("hidden-names.json")
        self.older_secrets = self.control.below("secrets.env")
        self.manifest = self.control.below("manifest.json")
        self.settled = self.control.below("settled")
        self.contact_lock = self.control.below("contact.lock")
        self.keeper_lock = self.record.below("keeper.lock")
        self.keeper_log = self.record.below("keeper.log")
        self.slurm_log = self.record.below("slurm.log")
        self.container_end = self.record.below("container.json")
        self.code = self.work.below("code")
        self.data = self.work.below("data")
        self.artifacts = self.work.below("artifacts")
        self.checkpoints = self.work.below("checkpoints")
        self.incoming = self.work.below("incoming")
        self.home = self.work.below("home")
        self.root = os.path.dirname(os.path.dirname(path))
        self.cache = os.path.join(self.root, "cache")
        self._known_place: tuple[str | None, bool] | None = None

    def end_mark_path(self, state: str) -> RunPath:
        """Return the path of the mark that records the announcement of this final state."""
        return self.record.below("told-%s" % state)

    def make(self) -> None:
        """Make the run's folders. Raises FileExistsError if a run of this id exists."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        os.mkdir(self.path, 0o755)
        for folder in (self.control, self.record, self.work):
            os.mkdir(folder, 0o755)

    def open_up(self) -> None:
        """Make the record writable again, so that an end can be recorded.

        The job may have changed the record's mode or moved its first folder away.
        """
        if self.record != self.path:
            with contextlib.suppress(OSError):  # the next write reports why
                open_up(self.record)
                if self.has_lost_folders():
                    with opened_folder(self.record) as record:
                        os.mkdir("0001", 0o755, dir_fd=record)

    def has_lost_folders(self) -> bool:
        """Whether the job has removed the numbered folders. A prepared run has had the first one."""
        return (
            self.record != self.path
            and not self.numbers()
            and bool(read_record(self.prepared_record, ATTEMPT))
        )

    def numbers(self) -> list[int]:
        """Return the numbers of the folders, oldest first. A folder behind a gap does not count.

        The last folder is found by testing names: a job may put millions of names beside the folders, which
        would take long to list.
        """
        try:
            with opened_folder(self.record) as record:
                last = _last_in(record)
        except FileNotFoundError:
            if not os.path.isdir(self.path):
                raise
            return []
        return [1, *range(max(2, last - MAX_FOLDERS), last + 1)] if last else []

    def folder(self, number: int) -> RecordFolder:
        """Return the folder of this number; make nothing."""
        return RecordFolder(self.record.below("%04d" % number), number)

    def newest(self) -> Iterator[RecordFolder]:
        """Yield the folders, newest first, until their records exceed MAX_HISTORY bytes.

        An honest run's records are smaller.
        """
        size = 0
        for number in reversed(self.numbers()):
            if size > MAX_HISTORY:
                return
            folder = self.folder(number)
            yield folder
            size += folder.record_bytes()

    def newest_records(self) -> list[tuple[AttemptRecord, StateRecord]]:
        """Return (attempt.json, state.json) of the folders that `newest` yields, oldest first."""
        folders = reversed([*self.newest()])
        return [(folder.read_attempt(), folder.read_state()) for folder in folders]

    def last(self) -> RecordFolder | None:
        """Return the folder with the highest number, None if the run has none."""
        numbers = self.numbers()
        return self.folder(numbers[-1]) if numbers else None

    def new_folder(
        self, after: RecordFolder | None = None, sealed: Iterable[str] | None = None
    ) -> RecordFolder:
        """Make the folder that follows `after`, by default the last folder, and take the new folder's lock.

        The folder appears in one step: already locked, and with a record of `sealed`, the digests of the
        checkpoints that are sealed so far (store/checkpoints.py). Raises FileExistsError if another process was
        faster: that process then owns the run.
        """
        before = self.last() if after is None else after
        number = before.number + 1 if before is not None else 1
        hidden = ".%04d-%s" % (number, os.urandom(8).hex())
        with opened_folder(self.record) as record:
            os.mkdir(hidden, 0o755, dir_fd=record)
            folder = RecordFolder(self.record.below(hidden), number)
            try:
                folder.take_lock()
                if sealed is not None:
                    folder.write_sealed(sealed)
                # A rename would replace an empty folder, which an older agent may just have made.
                if _has(record, number):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.folder(number).path)
                os.rename(hidden, "%04d" % number, src_dir_fd=record, dst_dir_fd=record)
            except OSError as error:
                folder.release()
                remove_folder(folder.path)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise FileExistsError(error.errno, error.strerror, self.folder(number).path) from None
                raise
        return folder.named(self.folder(number).path)

    def is_taken_over(self, after: int) -> bool:
        """Whether an agent has begun an attempt in a folder newer than number `after`."""
        last = self.last()
        return last is not None and last.number > after and os.path.exists(last.attempt)

    def has_folder_after(self, folder: RecordFolder) -> bool:
        """Whether another process has made the next folder and so continues the run.

        The record is opened anew for each check, because a network file system then asks its server.
        """
        try:
            with opened_folder(self.record) as record:
                return _has(record, folder.number + 1)
        except FileNotFoundError:  # the run is being removed
            return False

    def read_plan(self) -> PlanRecord:
        """Return the plan; empty before it is written."""
        return cast("PlanRecord", read_json(self.plan))

    def prepared(self) -> AttemptRecord:
        """Return the record of the run's preparation; empty if missing or the agent cannot have written it.

        It controls the agent's actions, so it lies outside the numbered folders, to which a job may write.
        Until 2026-11-22 it was only in the first numbered folder.
        """
        try:
            record = read_attempt(self.prepared_record)
        except UnreadableError:
            return {}
        return record or (self.folder(1).read_attempt() if self.numbers() else {})

    def write_prepared(self, folder: RecordFolder, record: AttemptRecord) -> None:
        """Write the record of the run's preparation, durably.

        One copy in `control` is for the agent, one in the first folder for clients.
        """
        text = strict_json.encode(record) + "\n"
        write_durably(self.prepared_record, text)
        write_durably(folder.attempt, text)

    def cards(self) -> list[str]:
        """Return the UUIDs of the run's latest cards: those it was prepared with, or those it has moved to.

        Cards in the numbered folders count only if the run was prepared for them. In a service, each
        session prepares the run again for the cards that it got.
        """
        prepared = self.prepared().get("runtime") or {}
        first = prepared.get("gpus") or []
        possible = {*first, *(prepared.get("any_of") or [])}
        for folder in self.newest():
            runtime = folder.read_attempt().get("runtime")
            if runtime is not None:
                latest = runtime.get("gpus") or []
                return list(latest if latest and possible.issuperset(latest) else first)
        return list(first)

    def place_id(self) -> str | None:
        """Return the id of the place that keeps the run; for a machine, its host id."""
        return self._place()[0]

    @property
    def has_shared_locks(self) -> bool:
        """Whether the run's locks are valid on all machines that share its root."""
        return self._place()[1]

    def has_locks_here(self, place_id: str) -> bool:
        """Whether the run's locks are valid in this place, by the run's record.

        True for a run that has no record yet: the process that prepares it holds a lock, or has died.
        """
        recorded, has_shared_locks = self._place()
        return recorded in (None, place_id) or has_shared_locks

    def _place(self) -> tuple[str | None, bool]:
        """Return the place's id and whether its locks are shared. Read once: a run stays in its place."""
        if self._known_place is None:
            record = self.prepared()
            place = (place_of(record), record.get("locks") == SHARED)
            if place[0] is None:
                return place
            self._known_place = place
        return self._known_place

    def evidence(self, place_id: str) -> str:
        """Return the folder of a place's precision evidence."""
        return evidence_folder(self.root, place_id)

    def read_wish(self) -> str:
        """Return the user's wish: `run`, `stop` or `cancel`."""
        text = read_text(self.wish) or "run"
        return text if text in WISHES else "run"

    def write_wish(self, wish: str) -> None:
        """Write a wish over the last one. Raises OSError.

        All wishes have the same length, so that a full disk has room for them. Anything else that a job put
        in the file's place is replaced.
        """
        text = "%-7s\n" % wish
        try:
            write_in_place(self.wish, text.encode())
        except UnreadableError:
            write_durably(self.wish, text)


class RecordFolder:
    """One numbered folder. One process writes it, and holds its lock until that process ends."""

    def __init__(self, path: RunPath, number: int) -> None:
        """Derive the paths of the folder; read and make nothing."""
        self.path = path
        self.number = number
        self.lock = path.below("lock")
        self.sealed = path.below("sealed.json")
        self.attempt = path.below("attempt.json")
        self.state = path.below("state.json")
        self.events = path.below("events.jsonl")
        self.log = path.below("log.txt")
        self.heartbeat = path.below("heartbeat")
        self.precision = path.below("precision.json")
        self.reports = path.below("reports.jsonl")
        self.output = path.below("output.txt")
        self.stacks = path.below("stacks.txt")
        self._held: Lock | None = None

    def of_node(self, name: str) -> RecordFolder:
        """Return the folder of one node, by the node's name, in a run on several nodes."""
        fitting = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63].rstrip("-")
        return RecordFolder(self.path.below(fitting or "node"), self.number)

    def nodes(self) -> list[RecordFolder]:
        """Return the folders of the nodes, sorted by name; empty if the run has one node."""
        try:
            with opened_folder(self.path) as folder, os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except UnreadableError:
            return []
        return [
            RecordFolder(self.path.below(name), self.number) for name in sorted(filter(NODE.fullmatch, names))
        ]

    def record_bytes(self) -> int:
        """Return the total size of the folder's records in bytes."""
        size = 0
        for path in (self.attempt, self.state, self.heartbeat):
            with contextlib.suppress(OSError):
                size += status_of(path).st_size
        return size

    def named(self, path: RunPath) -> RecordFolder:
        """Return this folder with another path; its lock stays held."""
        folder = RecordFolder(path, self.number)
        folder._held, self._held = self._held, None
        return folder

    def take_lock(self) -> None:
        """Take the writer's lock. It ends with `release` or with the writer's process."""
        self._held = Lock.take(self.lock)
        if self._held is None:  # unexpected: this process has just made the folder
            raise OSError(errno.EAGAIN, "the lock of a new folder is held by another process", self.lock)

    def release(self) -> None:
        """Release the lock."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def device(self) -> int:
        """Return the number of the file system that holds the lock, valid until this machine's next boot."""
        return status_of(self.lock).st_dev

    def is_locked(self) -> bool:
        """Whether the writer is alive. The test takes a shared lock, so that readers do not see each other's locks."""
        return is_locked(self.lock)

    def read_attempt(self) -> AttemptRecord:
        """Return the record of the attempt; empty if it is missing or the agent cannot have written it."""
        try:
            return read_attempt(self.attempt)
        except UnreadableError:
            return {}

    def read_state(self) -> StateRecord:
        """Return the state; empty if missing, UNREADABLE if the agent cannot have written it."""
        try:
            return read_state(self.state)
        except UnreadableError as error:
            return unreadable(error)

    def read_heartbeat(self) -> HeartbeatRecord:
        """Return the heartbeat; empty if it is missing or the agent cannot have written it."""
        try:
            return read_heartbeat(self.heartbeat)
        except UnreadableError:
            return {}

    def write_sealed(self, digests: Iterable[str]) -> None:
        """Write the digests of the checkpoints that were sealed before this folder began."""
        write_over(self.sealed, strict_json.encode({"manifests": sorted(digests)}) + "\n")

    def read_sealed(self) -> frozenset[str] | None:
        """Return the digests of the checkpoints sealed before this folder began; None if unrecorded."""
        try:
            manifests = read_record(self.sealed, SEALED).get("manifests")
        except UnreadableError:
            return None
        return None if manifests is None else frozenset(manifests)

    def write_state(self, state: str, reason: str | None = None, **more: Any) -> None:
        """Write the state and its reason, durably."""
        record = {"version": VERSION, "state": state, "reason": reason, "time": time.time()}
        record.update(more)
        write_durably(self.state, strict_json.encode(record) + "\n")


def _last_in(record: int) -> int:
    """Return the number of the last folder in a run's record, or 0."""
    present, missing = 0, 1
    while missing <= MAX_NUMBER and _has(record, missing):
        present, missing = missing, 2 * missing
    while missing - present > 1:
        middle = (present + missing) // 2
        present, missing = (middle, missing) if _has(record, middle) else (present, middle)
    return present


def _has(record: int, number: int) -> bool:
    try:
        os.stat("%04d" % number, dir_fd=record, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def unreadable(error: OSError) -> StateRecord:
    """Return the UNREADABLE state for a run whose record cannot be read."""
    words = error.words if isinstance(error, UnreadableError) else "%s: %s" % (error.filename, error.strerror)
    return {"state": UNREADABLE, "reason": None, "evidence": {UNREADABLE: words}}


def place_of(record: AttemptRecord) -> str | None:
    """Return the place's id in a folder's record.

    Until 2026-11-22 every place was a host, and the key was `host_id`.
    """
    place = record.get("place_id") or record.get("host_id")
    return place if isinstance(place, str) else None


def evidence_folder(root: str, place_id: str) -> str:
    """Return the folder of the precision evidence of a place: a host, or a cluster."""
    return os.path.join(root, "hosts", place_id, "evidence")
