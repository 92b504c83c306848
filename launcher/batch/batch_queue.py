"""A batch's queue on disk: one SQLite file. Each transition of an item is synced before the action it names.

One process at a time works on a batch, under a lock that ends with the process. Others may read the file at
the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import shlex
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from launcher.base import untrusted_json
from launcher.base.client_files import Lock, is_locked
from launcher.base.whole_file import sync
from launcher.batch import batch_index
from launcher.batch.input.batch_matrix import Point
from launcher.batch.queued_item import FOLLOWING, NEVER_BEGAN, ONCE_RESERVED, UNENDED, Item, ItemState
from launcher.copy.run_files import RunFiles
from launcher.copy.run_id import RUN_ID
from launcher.copy.runs_folder import make_runs_folder, runs_folder
from launcher.errors import BadFileError, RunError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from launcher.batch.input.batch_definition import Rules

FOLDER = "batches"
FILE = "queue.sqlite"
LOCK = ".worker.lock"
WORKER = "worker.json"
OPEN = ".open"
"""A marker beside the queue of a batch that has not ended. A list of runs reads only marked batches."""
MADE = ".made"
RESULTS, PICTURE = "results.csv", "curves.png"
"""The result files of the batch."""
VERSION = 1
_UNUSABLE = (RunError, BadFileError)
BUSY_S = 30.0
MAX_BYTES = 256 << 20
"""The maximum size of a queue and of its log of changes. A batch of 10,000 items has a few MB."""
_MAX_TEXT, _MAX_SCHEMA_TEXT = 16 << 20, 4096
"""The maximum number of bytes of one value, and of one row of SQLite's list of tables."""
_SCHEMA_OPS = 10_000
"""The maximum number of SQLite instructions to read that list. A valid one takes about a hundred."""
_TABLES = """
CREATE TABLE batch (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE item (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    request TEXT NOT NULL,
    hosts TEXT NOT NULL,
    point TEXT NOT NULL,
    state TEXT NOT NULL,
    run TEXT,
    host TEXT,
    outcome TEXT,
    why TEXT,
    tried TEXT NOT NULL DEFAULT '[]',
    changed REAL NOT NULL
);
CREATE TABLE run (run TEXT PRIMARY KEY, item INTEGER NOT NULL) WITHOUT ROWID;
"""
_COLUMNS = "number, name, request, hosts, point, state, run, host, outcome, why, tried, changed"


class NewItem(NamedTuple):
    """An item to queue: its name, its request as JSON, its hosts, and its point of the matrix."""

    name: str
    request: str
    hosts: Sequence[str]
    point: Point


class BatchRequest(StrEnum):
    """A request to a batch's worker: start no new items, or queue the failed items again."""

    STOP = "stop"
    AGAIN = "again"


class Worker(NamedTuple):
    """The process that works on a batch, and its machine."""

    pid: int
    machine: str

    @property
    def words(self) -> str:
        """Its name in messages."""
        return f"process {self.pid} on {self.machine}"

    @property
    def is_stopped(self) -> bool:
        """Whether the process was stopped, e.g. by Ctrl-Z, so that its launches may wait forever.

        Only known for a process of this machine, on Linux.
        """
        if self.machine != platform.node():
            return False
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except (OSError, IndexError):
            return False


class BatchQueue:
    """The queue of one batch, as a context manager. Thread-safe.

    Every method raises RunError for an error of the disk or the file. The folder may come from anyone: a file
    that launch did not write is refused with BadFileError on opening, before any content is used.
    """

    def __init__(self, name: str, folder: Path, *, only_looks: bool = False) -> None:
        """Open the queue of the batch in a folder, which must exist.

        With `only_looks` a read-only folder is accepted too.
        """
        self.name, self.folder = name, folder
        self.files = _files(folder)
        self._lock = threading.RLock()
        self.refusals: defaultdict[int, dict[str, str]] = defaultdict(dict)
        """The refusals that this process received: each host's message, by the number of the item."""
        self._check_files()
        with self._errors():
            how = "rw"
            if only_looks and not os.access(folder, os.W_OK) and not self.files.exists(f"{FILE}-shm"):
                how = "ro&immutable=1"  # otherwise SQLite writes beside the file even for reading
            self._data = sqlite3.connect(
                f"file:{_quoted(folder / FILE)}?mode={how}", uri=True, timeout=BUSY_S, check_same_thread=False
            )
            self._data.isolation_level = (
                "IMMEDIATE"  # a change begins a transaction, which ends with its `with`
            )
            self._check_data()
            self._data.execute("PRAGMA synchronous=FULL")
            fixed = "SELECT key, value FROM batch WHERE key IN ('version', 'rules')"
            known = dict(self._data.execute(fixed))
        self._rules = str(known.get("rules", ""))
        if known.get("version") != str(VERSION):
            raise RunError(f"{folder / FILE}: was written by another version of launch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._data.close()

    def _check_files(self) -> None:
        """Raise BadFileError for links, pipes, too large files, and a journal.

        A journal names a file that SQLite would delete. Launch's queues use a log instead, so they have no
        journal.
        """
        if shlex.quote(self.name) != self.name:
            raise self._stranger("no batch has such a name")
        try:
            if self.folder.is_symlink() or self.folder.parent.is_symlink():
                raise self._stranger("a link leads there")
            with os.scandir(self.folder) as entries:
                found = list(entries)
            for entry in found:
                if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                    raise self._stranger(f"'{entry.name}' is not a regular file")
                if entry.name == f"{FILE}-journal":
                    raise self._stranger(f"'{entry.name}' is not written by launch")
                if not entry.name.startswith(FILE):
                    continue
                status = entry.stat(follow_symlinks=False)
                if status.st_size > MAX_BYTES:
                    raise self._stranger(f"'{entry.name}' is larger than {MAX_BYTES:,} bytes")
                if status.st_nlink > 1:
                    raise self._stranger(f"'{entry.name}' has a second name (a hard link)")
        except OSError as error:
            raise RunError(f"{error.filename or self.folder}: {error.strerror}") from error

    def _check_data(self) -> None:
        """Raise BadFileError for other tables than launch's, sqlite3.DatabaseError for a damaged file.

        In a file that passes, every query ends. A view, a trigger, a computed column or a cycle of pages could
        keep SQLite busy forever, and no signal reaches a process inside SQLite.
        """
        self._data.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_SCHEMA_TEXT)
        self._data.set_progress_handler(lambda: 1, _SCHEMA_OPS)
        try:
            found = _schema(self._data)
        except (sqlite3.DataError, sqlite3.OperationalError) as error:
            if error.sqlite_errorcode not in (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_INTERRUPT):
                raise
            found = None
        if found == []:  # a file cut off before its first page
            raise sqlite3.DatabaseError("it is empty")
        if found != _our_schema():
            raise self._stranger(f"{FILE} has other tables than launch makes")
        self._data.set_progress_handler(None, 0)
        self._data.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_TEXT)
        (said,) = self._data.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok":
            raise sqlite3.DatabaseError(said)

    def _stranger(self, why: str) -> BadFileError:
        return BadFileError(
            f"not a batch of launcher: {self.folder}: {why}\n"
            f"  to remove it   rm -r {shlex.quote(str(self.folder))}"
        )

    @property
    def rules(self) -> Rules:
        """The rules of the whole batch."""
        from launcher.batch.input.batch_definition import Rules  # showing a batch must not import pydantic

        with self._errors():
            return Rules.model_validate_json(self._rules)

    def identity(self) -> str:
        """Return the SHA-256 of the batch's definition: its present rules, and the items' commands and hosts."""
        keys = ("version", "rules", "folder", "made", "name")
        with self._errors():
            items = self._data.execute("SELECT number, name, request, hosts, point FROM item ORDER BY number")
            begun = [*(self._value(key) for key in keys), *items]
        return hashlib.sha256(json.dumps(begun, default=repr).encode()).hexdigest()

    def rules_with(self, changes: Mapping[str, float]) -> Rules:
        """Return the rules with changed limits, by key. Raises BadFileError for an invalid one."""
        from launcher.batch.input.batch_definition import Rules
        from launcher.values.parsing import build

        return build(Rules, {**self.rules.model_dump(), **changes}, file=f"batch {self.name}")

    def change_rules(self, rules: Rules) -> None:
        """Record new rules, for the next worker of the batch."""
        written = rules.model_dump_json()
        with self._errors(), self._data:
            self._data.execute("UPDATE batch SET value = ? WHERE key = 'rules'", (written,))
        self._rules = written

    def check_folder(self) -> None:
        """Raise UsageError unless the batch was made in the working folder, and is not a copy.

        Its runs take their files from that folder.
        """
        with self._errors():
            folder = Path(self._value("folder"))
        if folder != Path.cwd():
            raise UsageError(
                f"{self.name} was made in {folder}, and takes its files from there\n"
                f"  next   cd {shlex.quote(str(folder))} && launch batch resume {self.name}"
            )
        known = batch_index.folder_of(self.identity())
        if known is not None and not known.samefile(self.folder) and self._is_in(known):
            raise UsageError(
                f"{self.name} is a copy of the batch {known.name}: its items would be run twice\n"
                f"  next   launch batch resume {known.name}"
            )

    def _is_in(self, folder: Path) -> bool:
        """Whether another folder has the same batch."""
        with contextlib.suppress(*_UNUSABLE), BatchQueue(folder.name, folder) as other:
            return other.identity() == self.identity()
        return False

    def wish(self, wish: BatchRequest) -> None:
        """Record a request for the present worker, or the next one."""
        with self._errors(), self._data:
            self._data.execute("INSERT OR REPLACE INTO batch VALUES (?, '1')", (wish,))

    def wishes(self, wish: BatchRequest) -> bool:
        """Whether a request is on record."""
        with self._errors():
            return bool(self._value(wish))

    def take_back(self, wish: BatchRequest) -> bool:
        """Remove a request from the record. Return whether it was on record."""
        with self._errors(), self._data:
            return (
                bool(self._value(wish))
                and self._data.execute("DELETE FROM batch WHERE key = ?", (wish,)).rowcount > 0
            )

    def items(self, *states: ItemState) -> list[Item]:
        """Return the items in order, all of them or those in some states."""
        where = f" WHERE {_in_states(states)}" if states else ""
        with self._errors():
            rows = self._data.execute(f"SELECT {_COLUMNS} FROM item{where} ORDER BY number")  # noqa: S608 - constants only
            return [_item(row) for row in rows]

    def count(self, *states: ItemState) -> int:
        """Return the number of items in some states."""
        with self._errors():
            query = f"SELECT count(*) FROM item WHERE {_in_states(states)}"  # noqa: S608 - constants only
            return int(self._data.execute(query).fetchone()[0])

    def item(self, number: int) -> Item:
        """Return one item."""
        with self._errors():
            row = self._data.execute(f"SELECT {_COLUMNS} FROM item WHERE number = ?", (number,)).fetchone()  # noqa: S608
            return _item(row)

    def step(
        self,
        item: Item,
        state: ItemState,
        *,
        run: str | None = None,
        host: str | None = None,
        outcome: str | None = None,
        why: str | None = None,
        tried: Sequence[str] = (),
    ) -> Item:
        """Move an item to a state. Return the resulting item once it is on disk.

        Without `run` and `host`, the present values stay; an item that is queued again, or never began, has
        none. Raises ValueError for a state that cannot follow the item's state.
        """
        if state not in FOLLOWING[item.state]:
            raise ValueError(f"{item.name}: {state} does not follow {item.state}")
        has_no_run = state == ItemState.QUEUED or outcome in NEVER_BEGAN
        values = {
            "state": state,
            "run": None if has_no_run else run or item.run,
            "host": None if has_no_run else host or item.host,
            "outcome": outcome,
            "why": why,
            "tried": json.dumps([*tried] if tried else [*item.tried]),
            "changed": time.time(),
        }
        changes = ", ".join(f"{key} = :{key}" for key in values)
        with self._errors(), self._data:
            done = self._data.execute(
                f"UPDATE item SET {changes} WHERE number = :number AND {_in_states([item.state])}",  # noqa: S608 - constants only
                {**values, "number": item.number},
            ).rowcount
            if done == 1 and run is not None:
                self._data.execute("INSERT OR IGNORE INTO run VALUES (?, ?)", (run, item.number))
        if done != 1:
            raise RunError(
                f"{self.name}: {item.name} is not {item.state} any more: another process has changed it"
            )
        return self.item(item.number)

    def mend(self) -> list[str]:
        """Restore launches missing in the file. Return the names of their items.

        The caller must look for their runs. A file that was cut off, or replaced by an older copy, may have
        lost its last transitions without any sign of it. The index of this user's runs lists them: a run is
        added before it begins.
        """
        from launcher.copy import index  # showing a batch needs neither
        from launcher.copy.local_copy import LocalCopy

        known, items = self.runs(), {item.name: item for item in self.items()}
        with self._errors():
            made = float(self._value("made"))
        lost: dict[str, tuple[str, str]] = {}
        for entry in index.of_batch(self.name, made):
            name = LocalCopy(entry.run, self.folder.parent.parent).record.plan().job
            if entry.run not in known and name in items and entry.host.name in items[name].hosts:
                lost[name] = entry.run, entry.host.name  # keeps the latest of several launches
        with self._errors(), self._data:
            for name, (run, host) in lost.items():
                self._data.execute(
                    "UPDATE item SET state = ?, run = ?, host = ?, outcome = NULL, why = NULL WHERE name = ?",
                    (ItemState.RESERVED, run, host, name),
                )
                self._data.execute("INSERT INTO run VALUES (?, ?)", (run, items[name].number))
        return [*lost]

    def mark(self) -> bool:
        """Update the marker for lists of runs. Return whether the batch has ended.

        If the marker cannot be removed, lists still read this batch's queue.
        """
        has_ended = self.count(*UNENDED) == 0
        with contextlib.suppress(OSError):
            if has_ended:
                self.files.remove(OPEN)
            else:
                self.files.open(OPEN, "ab").close()
        return has_ended

    def note(self, reasons: Mapping[int, str | None]) -> None:
        """Record what items wait for, by their numbers."""
        with self._errors(), self._data:
            self._data.executemany(
                "UPDATE item SET why = ? WHERE number = ? AND outcome IS NULL",
                [(why, number) for number, why in reasons.items()],
            )

    def runs(self, items: Collection[int] | None = None) -> dict[str, int]:
        """Return all run ids ever created for an item, or for the given items, with the item's number.

        Runs that never began are included.
        """
        marks = "" if items is None else f" WHERE item IN ({','.join('?' * len(items))})"
        with self._errors():
            rows = self._data.execute(f"SELECT run, item FROM run{marks}", [*(items or ())])  # noqa: S608
            return {_run_id(run): number for run, number in rows}

    def _value(self, key: str) -> str:
        row = self._data.execute("SELECT value FROM batch WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else ""

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn SQLite errors into RunError, with the file and the next command."""
        file = self.folder / FILE
        try:
            with self._lock:
                yield
        except sqlite3.OperationalError as error:
            words = {
                "database or disk is full": "no space left",
                "unable to open database file": "cannot be opened",
            }
            said = words.get(str(error), str(error))
            raise RunError(
                f"{file}: {said}\n  every started run is recorded in it; repair it, then   launch batch resume {self.name}"
            ) from error
        except (sqlite3.DatabaseError, ValueError, TypeError, LookupError, OverflowError) as error:
            raise RunError(
                f"{file}: is damaged: {str(error).splitlines()[0]}\n"
                f"  its runs are listed by   launch ps     a copy of the file can replace it, then   launch batch resume {self.name}"
            ) from error


def _in_states(states: Collection[ItemState]) -> str:
    """Return the SQL condition for items in these states, including an older version's state names."""
    words = [*states, *([ONCE_RESERVED] if ItemState.RESERVED in states else [])]
    return "state IN ('" + "', '".join(words) + "')"


def _item(row: Sequence[Any]) -> Item:
    """Return a row as an item. Raises ValueError or TypeError for a row that launch cannot have written."""
    number, name, request, hosts, point, state, run, host, outcome, why, tried, changed = row
    values = untrusted_json.decode(point)
    if not isinstance(values, dict) or not isinstance(changed, float):
        raise TypeError(f"item {number} has a value of another kind")
    for text in (name, request, run, host, outcome, why):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"item {number} has a value of another kind")
    if host is not None and host not in _texts(hosts):
        raise ValueError(f"item {number} is on a host that it was not begun with")
    return Item(
        number,
        name,
        request,
        _texts(hosts),
        values,
        ItemState(state),
        None if run is None else _run_id(run),
        host,
        outcome,
        why,
        _texts(tried),
        changed,
    )


def _texts(written: str) -> tuple[str, ...]:
    found = untrusted_json.decode(written)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise TypeError("a list of hosts is not a list of texts")
    return tuple(found)


def _run_id(run: object) -> str:
    """Return a run id, which becomes a part of paths. Raises ValueError for anything else."""
    if not isinstance(run, str) or not RUN_ID.fullmatch(run):
        raise ValueError(f"{str(run)[:60]!r} is not a run id")
    return run


def _schema(data: sqlite3.Connection) -> list[tuple[str | None, ...]]:
    return data.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name").fetchall()


@functools.cache
def _our_schema() -> list[tuple[str | None, ...]]:
    """Return SQLite's list of tables for a new queue."""
    with contextlib.closing(sqlite3.connect(":memory:")) as data:
        data.executescript(_TABLES)
        return _schema(data)


def _quoted(path: Path) -> str:
    """Quote a path for an SQLite URI."""
    from urllib.parse import quote

    return quote(str(path))


def batches_folder() -> Path:
    """Return the folder of this client's batches, inside the folder of its runs."""
    return runs_folder() / FOLDER


def names() -> list[str]:
    """Return the names of this client's batches, the latest last."""
    made = {name: _files(batches_folder() / name).status(MADE) for name in _with(FILE)}
    # The queue file itself changes with every read.
    return sorted(made, key=lambda name: (0.0 if (status := made[name]) is None else status.st_mtime, name))


def _with(file: str) -> list[str]:
    """Return the names of the batches that have a given file. A leading dot marks an incomplete batch."""
    files = RunFiles(batches_folder())
    return [name for name in files.folders() if name[0] != "." and files.is_file(f"{name}/{file}")]


def _files(folder: Path) -> RunFiles:
    """Return the files of a batch. Its folder lies two levels below the one that the user named."""
    return RunFiles(folder, folder.parent.parent)


def unworked_batches(tell: Callable[[str], None]) -> dict[str, int]:
    """Return the number of queued items in each batch that has not ended and has no worker.

    `tell` receives one line about each batch that cannot be read.
    """
    found: dict[str, int] = {}
    for name in _with(OPEN):
        try:
            with BatchQueue(name, batches_folder() / name, only_looks=True) as queue:
                if batch_index.has(queue) and worker_of(queue) is None and not queue.mark():
                    found[queue.name] = queue.count(ItemState.QUEUED)
        except _UNUSABLE as error:
            tell(str(error).splitlines()[0])
    return found


def make_queue(name: str, rules: Rules, entries: Iterable[NewItem]) -> BatchQueue:
    """Create the queue of a new batch. It appears complete or not at all.

    Raises UsageError for an existing name, RunError if the disk or its locks fail.
    """
    batches = RunFiles(batches_folder())
    folder = batches.folder / name
    if batches.exists(name):
        raise UsageError(
            f"a batch '{name}' is here already, with its file as it was when it began\n"
            f"  its progress       launch batch status {name}\n"
            f"  continue it        launch batch resume {name}\n"
            f"  beside it          the same command with   --name NAME\n"
            f"  in its place       launch batch rm {name}   then the same command; its runs stay"
        )
    part = f".{name}.{os.getpid()}.part"
    try:
        make_runs_folder(runs_folder())
        batches.make_folder(part)
        check_locks(batches.folder / part)
        _write(batches.folder / part / FILE, name, rules, entries)
        for one in (OPEN, MADE):
            batches.open(f"{part}/{one}", "ab").close()
        batches.sync(part)
        batches.rename(part, name)
        batches.sync("")
        sync(batches.folder.parent)
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RunError(f"{folder}: cannot be made: {why}\n  nothing was begun") from error
    finally:
        with contextlib.suppress(OSError):
            batches.remove_tree(part)
    queue = BatchQueue(name, folder)
    try:
        batch_index.enter(queue)
    except RunError:
        queue.close()
        raise
    return queue


def _write(file: Path, name: str, rules: Rules, entries: Iterable[NewItem]) -> None:
    data = sqlite3.connect(file)
    try:
        (mode,) = data.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise OSError(
                0,
                f"SQLite cannot keep its log there (it says '{mode}'); name another folder   LAUNCH_RUNS=FOLDER",
            )
        data.execute("PRAGMA synchronous=FULL")
        with data:
            data.executescript(_TABLES)
            data.executemany(
                "INSERT INTO batch VALUES (?, ?)",
                [
                    ("version", str(VERSION)),
                    ("rules", rules.model_dump_json()),
                    ("folder", str(Path.cwd())),
                    ("made", repr(time.time())),
                    ("name", name),
                ],
            )
            data.executemany(
                "INSERT INTO item (name, request, hosts, point, state, changed) VALUES (?, ?, ?, ?, 'queued', ?)",
                (
                    (one.name, one.request, json.dumps(one.hosts), json.dumps(one.point), time.time())
                    for one in entries
                ),
            )
        data.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        data.close()


_TRY = """
import fcntl, sys
with open(sys.argv[1], "rb+") as file:
    for lock in (fcntl.flock, fcntl.lockf):
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        sys.exit(1)
"""


def check_locks(folder: Path) -> None:
    """Raise OSError if a lock of one process does not keep another out.

    SQLite and the worker's lock rely on it.
    """
    path = folder / "lock-check"
    with path.open("wb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = (
                subprocess.run([sys.executable, "-I", "-S", "-c", _TRY, str(path)], check=False).returncode
                == 0
            )
        except OSError as error:
            raise OSError(
                error.errno,
                f"its file system takes no locks ({error.strerror}); name another folder   LAUNCH_RUNS=FOLDER",
            ) from error
    path.unlink()
    if not held:
        raise OSError(
            0,
            "its file system accepts locks, but does not enforce them; name another folder   LAUNCH_RUNS=FOLDER",
        )


def open_queue(name: str | None, *, only_looks: bool = False, may_be_foreign: bool = False) -> BatchQueue:
    """Open the queue of a batch, by default the latest. With `only_looks` the folder may be read-only.

    Raises UnknownNameError and RunError. RunError is also raised for a batch that this user has not begun,
    unless `only_looks` or `may_be_foreign`.
    """
    known = names()
    if not known:
        raise UnknownNameError(
            f"no batch in {batches_folder()}: they are in the folder where they were made\n"
            "  next   launch batch FILE.toml     or   launch batch --grid KEY=V1,V2"
        )
    chosen = known[-1] if name is None else name
    if chosen not in known:
        from launcher.values.parsing import nearest

        raise UnknownNameError(
            f"no batch '{chosen}' here{nearest(chosen, known)}\n  known: {', '.join(known[::-1][:20])}"
        )
    queue = BatchQueue(chosen, batches_folder() / chosen, only_looks=only_looks)
    if not (only_looks or may_be_foreign or batch_index.has(queue)):
        queue.close()
        raise RunError(
            f"batch {chosen} is foreign: you did not begin it\n"
            f"  its items   launch batch status {chosen}     take it over   launch batch resume {chosen}"
        )
    return queue


class Work:
    """The right to work on a batch: a lock that ends with this process.

    `mended` are the items whose launches were missing in the queue.
    """

    def __init__(self, lock: Lock, files: RunFiles, mended: Sequence[str] = ()) -> None:
        """Take over a held lock."""
        self._lock, self._files, self.mended = lock, files, mended

    def release(self) -> None:
        """Let another process work on the batch."""
        with contextlib.suppress(OSError):
            self._files.remove(WORKER)
        self._lock.release()


def take_work(queue: BatchQueue) -> Work | None:
    """Take the lock of a batch's worker, and repair the queue. Return None if another process has the lock.

    Raises RunError if the disk fails, or the queue cannot be repaired.
    """
    lock: Lock | None = None
    try:
        lock = Lock.take(queue.files.at(LOCK), 0.2)
        if lock is None:
            return None
        record = {"pid": os.getpid(), "machine": platform.node()}
        queue.files.write(WORKER, json.dumps(record).encode())
        return Work(lock, queue.files, queue.mend())
    except BaseException as error:
        if lock is not None:
            lock.release()
        if isinstance(error, OSError):
            raise RunError(f"{queue.folder}: {error.strerror}\n  nothing was begun") from error
        raise


def worker_of(queue: BatchQueue) -> Worker | None:
    """Return the process that works on a batch, or None."""
    try:
        if not is_locked(queue.files.at(LOCK)):
            return None
        record = queue.files.read_json(WORKER)
        return Worker(int(record["pid"]), str(record["machine"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def worker_words(queue: BatchQueue) -> str:
    """Return the name of the process that works on a batch."""
    worker = worker_of(queue)
    return "its process" if worker is None else worker.words
