"""The run directory: the one module that names its paths and says how they are written.

    <root>/runs/<run-id>/
      control/   what decides: plan.json  manifest.json  wish  token  secrets.env  contact.lock
      record/    what the agent writes down: NNNN/  keeper.lock  keeper.log  container.json
      work/      what the job may write: code/  data  artifacts/  checkpoints/  home/

    NNNN/        one numbered folder, one writer: lock  attempt.json  state.json  events.jsonl  log.txt  heartbeat
    NNNN/<node>/ the same, of one node of several; the leader writes into NNNN/ itself

A run that was recorded before 2026-11-22 has all of it in one folder, and is read as it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from typing import Any

from . import strict_json

VERSION = 1
TERMINAL = ("succeeded", "failed", "cancelled", "cancel-incomplete")
RUN_ID = re.compile(
    r"[0-9]{6}-[a-z0-9](?:[a-z0-9-]{0,24}[a-z0-9])?-[a-z0-9]{6}|[0-9]{4}-[a-z0-9][a-z0-9_.-]{0,47}-[a-z0-9]{4}"
)
"""At most 40 characters, of which 31 bits are random; the second form was given until 2026-11-22."""
FOLDER = re.compile(r"[0-9]{4,}")
NODE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
ONE_MACHINE, SHARED = "machine", "shared"
"""Where the locks of a run count: on the machine that made its record, or on all that share its root."""
SMALL_FILES = ("attempt.json", "state.json")
GROWING_FILES = ("events.jsonl", "log.txt")
LOOK_S = 1.0
MOST_WAITING = 64 * 1024 * 1024
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Run:
    """The paths of one run below a root."""

    def __init__(self, path: str) -> None:
        """Name the paths below `path`; nothing is made."""
        self.path = path
        self.id = os.path.basename(path)
        is_flat = not os.path.exists(os.path.join(path, "control")) and any(
            os.path.exists(os.path.join(path, name)) for name in ("plan.json", "0001")
        )
        self.control, self.record, self.work = (
            (path,) * 3 if is_flat else (os.path.join(path, name) for name in ("control", "record", "work"))
        )
        self.plan = os.path.join(self.control, "plan.json")
        self.wish = os.path.join(self.control, "wish")
        self.token = os.path.join(self.control, "token")
        self.secrets = os.path.join(self.control, "secrets.env")
        self.manifest = os.path.join(self.control, "manifest.json")
        self.contact_lock = os.path.join(self.control, "contact.lock")
        self.keeper_lock = os.path.join(self.record, "keeper.lock")
        self.keeper_log = os.path.join(self.record, "keeper.log")
        self.container_end = os.path.join(self.record, "container.json")
        self.code = os.path.join(self.work, "code")
        self.data = os.path.join(self.work, "data")
        self.artifacts = os.path.join(self.work, "artifacts")
        self.checkpoints = os.path.join(self.work, "checkpoints")
        self.incoming = os.path.join(self.work, "incoming")
        self.home = os.path.join(self.work, "home")
        self.root = os.path.dirname(os.path.dirname(path))
        self.cache = os.path.join(self.root, "cache")

    def make(self) -> None:
        """Make the run's folders. Raises FileExistsError if there is a run of this id already."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        os.mkdir(self.path, 0o755)
        for folder in (self.control, self.record, self.work):
            os.mkdir(folder, 0o755)

    def numbers(self) -> list[int]:
        """Return the numbers of the folders, oldest first."""
        try:
            names = os.listdir(self.record)
        except FileNotFoundError:
            if not os.path.isdir(self.path):
                raise
            return []
        return sorted(int(name) for name in names if FOLDER.fullmatch(name))

    def folder(self, number: int) -> Folder:
        """Name the folder of this number."""
        return Folder(os.path.join(self.record, "%04d" % number), number)

    def last(self) -> Folder | None:
        """Return the highest folder, None before the first."""
        numbers = self.numbers()
        return self.folder(numbers[-1]) if numbers else None

    def new_folder(self) -> Folder:
        """Make the next numbered folder, by exclusive mkdir, and take its lock."""
        while True:
            numbers = self.numbers()
            folder = self.folder(numbers[-1] + 1 if numbers else 1)
            try:
                os.mkdir(folder.path, 0o755)
            except FileExistsError:
                continue
            folder.take_lock()
            return folder

    def prepared(self) -> dict[str, Any]:
        """Return the record of how the run was prepared, from its first folder; empty before that is written."""
        numbers = self.numbers()
        return read_json(self.folder(numbers[0]).attempt) if numbers else {}

    def cards(self) -> list[str]:
        """Return the UUIDs of the run's latest cards: those it was prepared with, or has moved to since."""
        for number in reversed(self.numbers()):
            runtime = read_json(self.folder(number).attempt).get("runtime")
            if isinstance(runtime, dict):
                return [str(uuid) for uuid in runtime.get("gpus") or ()]
        return []

    def place_id(self) -> str | None:
        """Return the id of the place that keeps the run: of a machine, its host id."""
        return place_of(self.prepared())

    def has_locks_here(self, place_id: str) -> bool:
        """Whether the locks of the run count in this place, by its own record.

        A run whose record is not written yet is being made: its maker holds a lock, or has died.
        """
        record = self.prepared()
        return place_of(record) in (None, place_id) or record.get("locks") == SHARED

    def evidence(self, host_id: str) -> str:
        """Return the folder of a host's precision evidence."""
        return evidence_folder(self.root, host_id)

    def read_wish(self) -> str:
        """Return `run`, `stop` or `cancel`."""
        text = read_text(self.wish) or "run"
        return text if text in ("run", "stop", "cancel") else "run"


class Folder:
    """One numbered folder: written by one process, which holds its lock while it lives."""

    def __init__(self, path: str, number: int) -> None:
        """Name the paths of the folder; nothing is read or made."""
        self.path = path
        self.number = number
        self.lock = os.path.join(path, "lock")
        self.attempt = os.path.join(path, "attempt.json")
        self.state = os.path.join(path, "state.json")
        self.events = os.path.join(path, "events.jsonl")
        self.log = os.path.join(path, "log.txt")
        self.heartbeat = os.path.join(path, "heartbeat")
        self._held: Lock | None = None

    def nodes(self) -> list[Folder]:
        """Return the folders of the other nodes, by name; none if the run has one node."""
        names = sorted(
            entry.name
            for entry in os.scandir(self.path)
            if NODE.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        )
        return [Folder(os.path.join(self.path, name), self.number) for name in names]

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

    def is_locked(self) -> bool:
        """Whether the writer is alive. A shared lock is tried, so that two readers do not see each other."""
        return is_locked(self.lock)

    def read_state(self) -> dict[str, Any]:
        """Return the state; empty if none was written."""
        return read_json(self.state)

    def write_state(self, state: str, reason: str | None = None, **more: Any) -> None:
        """Write state and reason, durably."""
        record = {"version": VERSION, "state": state, "reason": reason, "time": time.time()}
        record.update(more)
        write_durably(self.state, strict_json.encode(record) + "\n")


class Lock:
    """A held `flock`."""

    def __init__(self, descriptor: int) -> None:
        """Wrap an open, locked descriptor."""
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: str, wait_s: float = LOOK_S, *, shared: bool = False) -> Lock | None:
        """Take the lock of a file, which is made if missing; return None if another process holds it for `wait_s` seconds.

        Whoever only looks (`is_locked`) holds a shared lock for an instant: that is waited for.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return None
                time.sleep(0.005)
            except OSError:
                os.close(descriptor)
                raise
            else:
                return cls(descriptor)

    def fileno(self) -> int:
        """Return the descriptor. A process that inherits it keeps the lock as long as it lives."""
        return self._descriptor

    def share(self) -> None:
        """Make the lock shared, so that others may take it shared too."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


class Appender:
    """An append-only file that survives a full disk: data that does not fit waits in memory until there is room.

    Beyond a bound what comes is dropped, and the file says how much.
    """

    def __init__(self, path: str) -> None:
        """Open the file, which is made if missing."""
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._waiting = bytearray()
        self._dropped = 0

    def append(self, data: bytes) -> None:
        """Append bytes, or keep them for the next try."""
        if len(self._waiting) + len(data) > MOST_WAITING:
            self._dropped += len(data)
            return
        self._waiting += data
        self.flush()

    def flush(self) -> bool:
        """Write the waiting data; return whether all of it is written."""
        try:
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, self._waiting[: 1 << 20])]
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        if self._dropped:
            line = "\n[launch: %d bytes were dropped here: the disk was full]\n" % self._dropped
            self._dropped = 0
            self.append(line.encode())
        return not self._waiting

    def tail(self, size: int) -> bytes:
        """Return the last bytes, including those that wait for room."""
        with open(self._path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return (file.read() + bytes(self._waiting))[-size:]

    def sync(self) -> None:
        """Make what was written durable."""
        os.fsync(self._descriptor)


def place_of(record: dict[str, Any]) -> str | None:
    """Return the id of the place in a folder's record; until 2026-11-22 it was always a host's, under that name."""
    place = record.get("place_id") or record.get("host_id")
    return place if isinstance(place, str) else None


def is_locked(path: str) -> bool:
    """Whether some process holds the exclusive lock of a file; a missing file is not locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_durably(path: str, text: str | bytes, mode: int = 0o644) -> None:
    """Replace a file so that a reader, or a crash, sees the old text or the new one, never a part."""
    data = text.encode() if isinstance(text, str) else text
    temporary = "%s.%d.tmp" % (path, os.getpid())
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one to report
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def evidence_folder(root: str, host_id: str) -> str:
    """Return the folder of a host's precision evidence."""
    return os.path.join(root, "hosts", host_id, "evidence")


def paths_in(folder: str) -> list[str]:
    """Return the paths of what lies in a folder, by name; none where it is missing."""
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except FileNotFoundError:
        return []


def read_text(path: str) -> str | None:
    """Return a small file's text, stripped; None where it is missing."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except FileNotFoundError:
        return None


def read_json(path: str) -> dict[str, Any]:
    """Return a record; empty where it is missing or no JSON object (a torn disk, never our own writing)."""
    text = read_text(path)
    if not text:
        return {}
    try:
        value = strict_json.decode(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
