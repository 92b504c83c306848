"""The run directory: the one module that names its paths and says how they are written.

    <root>/runs/<run-id>/
      control/   what decides: plan.json  prepared.json  manifest.json  settled  wish  token  contact.lock  digests.json  moved.json
                 service.json  slurm.json  slurm-end.json
      record/    what the agent writes down: NNNN/  secrets.env  hidden-names.json  keeper.lock  keeper.log
                 slurm.log  container.json  told-STATE
      work/      what the job may write: code/  data  artifacts/  checkpoints/  home/

    NNNN/        one numbered folder, one writer: lock  sealed.json  attempt.json  state.json  events.jsonl  log.txt  heartbeat
                 precision.json  stacks.txt
    NNNN/<node>/ what one node of several has for the agent, which records it in NNNN/: reports.jsonl  output.txt  state.json
                 stacks.txt

A run that was recorded before 2026-11-22 has all of it in one folder, and is read as it is.
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
    from .run_records import AttemptRecord, HeartbeatRecord, PlanRecord, RentRecord, StateRecord

VERSION = 1
TERMINAL = ("succeeded", "failed", "stopped", "stop-incomplete")
LIVE = ("preparing", "running", "stopping")
"""The recorded states in which an agent may be at work."""
RUN_ID = re.compile(
    r"[0-9]{6}-[a-z0-9](?:[a-z0-9-]{0,24}[a-z0-9])?-[a-z0-9]{6}|[0-9]{4}-[a-z0-9][a-z0-9_.-]{0,47}-[a-z0-9]{4}"
)
"""At most 40 characters, of which 31 bits are random; the second form was given until 2026-11-22."""
MOST_NUMBER = 1 << 29
MOST_FOLDERS = 10_000
"""The numbered folders that count, besides the first."""
MOST_HISTORY = 4 << 20
"""Bytes of records that are read of one run's folders: a job may make thousands, each with the same large record."""
UNREADABLE = "unreadable"
"""The state of a run whose last record cannot be read; its evidence says why."""
NODE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
ONE_MACHINE, SHARED = "machine", "shared"
"""Where the locks of a run count: on the machine that made its record, or on all that share its root."""
HEARTBEAT_S = 5.0
"""How often an agent writes its heartbeat."""
WISHES = {"run": None, "stop": "by-user", "cancel": "by-user-now"}
"""What a user may wish for a run, with the reason of the end that follows."""
SESSION_LIMIT = "session-limit"
"""Why a run is to go on whose session in a service has reached its limit."""
RENTED = "rented.json"
"""The file of a root on a rented machine, and of a run that was given more time there: until when it is rented, by that machine's clock."""
SMALL_FILES = ("attempt.json", "state.json")
GROWING_FILES = ("events.jsonl", "log.txt")


def rent_in(record: Mapping[str, Any], start: str = "") -> RentRecord:
    """Return until when a machine is rented, by a record whose keys have a start: by its wall clock, and by the clock of a boot."""
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
        """Name the paths below `path`; nothing is made."""
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

    def told(self, state: str) -> RunPath:
        """Name the mark that the notice of this end was sent."""
        return self.record.below("told-%s" % state)

    def make(self) -> None:
        """Make the run's folders. Raises FileExistsError if there is a run of this id already."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        os.mkdir(self.path, 0o755)
        for folder in (self.control, self.record, self.work):
            os.mkdir(folder, 0o755)

    def open_up(self) -> None:
        """Make the record one that an end can be written to, if the job has changed its mode or moved its first folder away."""
        if self.record != self.path:
            with contextlib.suppress(OSError):  # what follows says why
                open_up(self.record)
                if self.has_lost_folders():
                    with opened_folder(self.record) as record:
                        os.mkdir("0001", 0o755, dir_fd=record)

    def has_lost_folders(self) -> bool:
        """Whether the first folder, and so all of them, is gone: it was there before the run was on record."""
        return (
            self.record != self.path
            and not self.numbers()
            and bool(read_record(self.prepared_record, ATTEMPT))
        )

    def numbers(self) -> list[int]:
        """Return the numbers of the folders, oldest first. They have no gaps: what lies beyond one is not ours.

        The last is looked for by name: a job may put millions of names beside them, which would take long to list.
        """
        try:
            with opened_folder(self.record) as record:
                last = _last_in(record)
        except FileNotFoundError:
            if not os.path.isdir(self.path):
                raise
            return []
        return [1, *range(max(2, last - MOST_FOLDERS), last + 1)] if last else []

    def folder(self, number: int) -> Folder:
        """Name the folder of this number."""
        return Folder(self.record.below("%04d" % number), number)

    def newest(self) -> Iterator[Folder]:
        """Yield the folders, the newest first, until their records have more bytes than those of any honest run."""
        size = 0
        for number in reversed(self.numbers()):
            if size > MOST_HISTORY:
                return
            folder = self.folder(number)
            yield folder
            size += folder.record_bytes()

    def newest_records(self) -> list[tuple[AttemptRecord, StateRecord]]:
        """Return (attempt.json, state.json) of the folders that `newest` yields, the oldest first."""
        folders = reversed([*self.newest()])
        return [(folder.read_attempt(), folder.read_state()) for folder in folders]

    def last(self) -> Folder | None:
        """Return the highest folder, None before the first."""
        numbers = self.numbers()
        return self.folder(numbers[-1]) if numbers else None

    def new_folder(self, after: Folder | None = None, sealed: Iterable[str] | None = None) -> Folder:
        """Make the folder that follows `after`, by default the last one, and take its lock.

        It appears in one step: locked, and with `sealed`, the digests of the checkpoints that are sealed by now
        (late_seals.py). Raises FileExistsError if another process was faster: the run is not ours then.
        """
        before = self.last() if after is None else after
        number = before.number + 1 if before is not None else 1
        hidden = ".%04d-%s" % (number, os.urandom(8).hex())
        with opened_folder(self.record) as record:
            os.mkdir(hidden, 0o755, dir_fd=record)
            folder = Folder(self.record.below(hidden), number)
            try:
                folder.take_lock()
                if sealed is not None:
                    folder.write_sealed(sealed)
                # Not onto an empty folder either, which an older agent has just made.
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
        """Whether an agent has put a folder on record that is newer than folder `after`."""
        last = self.last()
        return last is not None and last.number > after and os.path.exists(last.attempt)

    def has_folder_after(self, folder: Folder) -> bool:
        """Whether another process has made the folder that follows this one: the run goes on there.

        The record is opened for each look, because a network file system then asks its server.
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
        """Return the record of how the run was prepared; empty before that is written, or if it cannot be ours.

        It decides what is done for the run, so it does not lie in the numbered folders, to which a job may write. Until
        2026-11-22 it was in the first of them alone.
        """
        try:
            record = read_attempt(self.prepared_record)
        except UnreadableError:
            return {}
        return record or (self.folder(1).read_attempt() if self.numbers() else {})

    def write_prepared(self, folder: Folder, record: AttemptRecord) -> None:
        """Write the record of how the run was prepared, durably: for us, and in its first folder for its clients."""
        text = strict_json.encode(record) + "\n"
        write_durably(self.prepared_record, text)
        write_durably(folder.attempt, text)

    def cards(self) -> list[str]:
        """Return the UUIDs of the run's latest cards: those it was prepared with, or has moved to since.

        It can only move to those that it was prepared for, whatever its folders say. In a service it is prepared anew
        for those that came.
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
        """Return the id of the place that keeps the run: of a machine, its host id."""
        return self._place()[0]

    @property
    def has_shared_locks(self) -> bool:
        """Whether the locks of the run count on all machines that share its root."""
        return self._place()[1]

    def has_locks_here(self, place_id: str) -> bool:
        """Whether the locks of the run count in this place, by its own record.

        A run whose record is not written yet is being made: its maker holds a lock, or has died.
        """
        recorded, has_shared_locks = self._place()
        return recorded in (None, place_id) or has_shared_locks

    def _place(self) -> tuple[str | None, bool]:
        """Return the place's id and whether its locks are shared. A run never changes its place: this is read once."""
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
        """Return `run`, `stop` or `cancel`."""
        text = read_text(self.wish) or "run"
        return text if text in WISHES else "run"

    def write_wish(self, wish: str) -> None:
        """Write a wish over the last one. Raises OSError.

        All have the same length, so that a full disk has room for it. What a job put in its place is replaced.
        """
        text = "%-7s\n" % wish
        try:
            write_in_place(self.wish, text.encode())
        except UnreadableError:
            write_durably(self.wish, text)


class Folder:
    """One numbered folder: written by one process, which holds its lock while it lives."""

    def __init__(self, path: RunPath, number: int) -> None:
        """Name the paths of the folder; nothing is read or made."""
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

    def of_node(self, name: str) -> Folder:
        """Name the folder of a node of a run on several, by the node's name."""
        fitting = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63].rstrip("-")
        return Folder(self.path.below(fitting or "node"), self.number)

    def nodes(self) -> list[Folder]:
        """Return the folders of the nodes of a run on several, by name; none if the run has one node."""
        try:
            with opened_folder(self.path) as folder, os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except UnreadableError:
            return []
        return [Folder(self.path.below(name), self.number) for name in sorted(filter(NODE.fullmatch, names))]

    def record_bytes(self) -> int:
        """Return how many bytes it may take to read the records of the folder."""
        size = 0
        for path in (self.attempt, self.state, self.heartbeat):
            with contextlib.suppress(OSError):
                size += status_of(path).st_size
        return size

    def named(self, path: RunPath) -> Folder:
        """Return this folder by another path; its lock stays held."""
        folder = Folder(path, self.number)
        folder._held, self._held = self._held, None
        return folder

    def take_lock(self) -> None:
        """Take the writer's lock. It ends with `release` or with the writer's process."""
        self._held = Lock.take(self.lock)
        if self._held is None:  # this process made the folder, so there is no other writer
            raise OSError(errno.EAGAIN, "the lock of a new folder is held by another", self.lock)

    def release(self) -> None:
        """Release the lock."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def device(self) -> int:
        """Return the number of the file system that holds the lock, as this machine counts them since its boot."""
        return status_of(self.lock).st_dev

    def is_locked(self) -> bool:
        """Whether the writer is alive. A shared lock is tried, so that two readers do not see each other."""
        return is_locked(self.lock)

    def read_attempt(self) -> AttemptRecord:
        """Return the record of the attempt; empty if none was written, or one that cannot be ours."""
        try:
            return read_attempt(self.attempt)
        except UnreadableError:
            return {}

    def read_state(self) -> StateRecord:
        """Return the state; empty if none was written, UNREADABLE with the reason if it cannot be ours."""
        try:
            return read_state(self.state)
        except UnreadableError as error:
            return unreadable(error)

    def read_heartbeat(self) -> HeartbeatRecord:
        """Return the heartbeat; empty if none was written, or one that cannot be ours."""
        try:
            return read_heartbeat(self.heartbeat)
        except UnreadableError:
            return {}

    def write_sealed(self, digests: Iterable[str]) -> None:
        """Write which checkpoints were sealed before this folder began."""
        write_over(self.sealed, strict_json.encode({"manifests": sorted(digests)}) + "\n")

    def read_sealed(self) -> frozenset[str] | None:
        """Return which checkpoints were sealed before this folder began; None if that is not on record."""
        try:
            manifests = read_record(self.sealed, SEALED).get("manifests")
        except UnreadableError:
            return None
        return None if manifests is None else frozenset(manifests)

    def write_state(self, state: str, reason: str | None = None, **more: Any) -> None:
        """Write state and reason, durably."""
        record = {"version": VERSION, "state": state, "reason": reason, "time": time.time()}
        record.update(more)
        write_durably(self.state, strict_json.encode(record) + "\n")


def _last_in(record: int) -> int:
    """Return the number of the last folder in a run's record, or 0."""
    present, missing = 0, 1
    while missing <= MOST_NUMBER and _has(record, missing):
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
    """Return the state of a run of which something cannot be read."""
    words = error.words if isinstance(error, UnreadableError) else "%s: %s" % (error.filename, error.strerror)
    return {"state": UNREADABLE, "reason": None, "evidence": {UNREADABLE: words}}


def place_of(record: AttemptRecord) -> str | None:
    """Return the id of the place in a folder's record; until 2026-11-22 it was always a host's, under that name."""
    place = record.get("place_id") or record.get("host_id")
    return place if isinstance(place, str) else None


def evidence_folder(root: str, place_id: str) -> str:
    """Return the folder of the precision evidence of a place: a host, or a cluster."""
    return os.path.join(root, "hosts", place_id, "evidence")
