"""The segments of the runs in a spool: each is pushed once, watched until it is over, brought home and deleted.

A segment is one session of a run in a cloud service that runs a script to its end. What is known of the latest one lies in
the run's folder (`SegmentRecord`), where every client of the spool, and the run's Fate, finds it. Two locks guard a run:
`service.lock` is held for a call that changes something at the service, `feed.lock` by the one process that writes what the
service sends into the run's folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from pydantic import ValidationError

from launcher.errors import HostError, RunError, ServiceError, UnsettledError
from launcher.hosts.desk import Heard
from launcher.hosts.spool import Settled, Spool
from launcher.remote.record.locks import Lock
from launcher.remote.record.rundir import TERMINAL, Run
from launcher.remote.store import checkpoints
from launcher.values.kaggle_kernel import LogPiece
from launcher.values.segment_record import SegmentRecord, SegmentStatus

SETTLE_S = 60.0
"""How long a push without an answer may take to show at the service. It is a guess: no figure was found."""
SETTLE_EVERY_S = 3.0
PUSHES = 3
"""So many pushes in a row may be lost before the launch gives up."""
BACK_OFF_S = (30.0, 60.0, 120.0, 300.0)
"""How long to wait before a push is tried again for which the service had no room."""
OVERDUE_S = 900.0
"""A session that the service calls running so long after its limit is deleted: others have seen such sessions (APIS of
Kaggle, unsloth's tests, 2026-08)."""
LOCK_S = 90.0
RECORD, LOCK, FEED_LOCK = "service.json", "service.lock", "feed.lock"


class Look(NamedTuple):
    """What a service says of a segment, and why it has ended if it says so."""

    status: SegmentStatus
    words: str = ""


class Packed(NamedTuple):
    """A segment that is ready to be pushed: its script, its machine, how long it may last, and the datasets that it mounts."""

    script: str
    machine: str
    session_s: float
    datasets: tuple[str, ...] = ()


class Output(NamedTuple):
    """A file that a segment has left: its path below the run's folder, and its bytes, which come as they are read."""

    path: str
    pieces: Iterator[bytes]


class Service(Protocol):
    """A cloud service that runs scripts, as far as segments need it. Every method may raise ServiceError."""

    name: str

    @property
    def about(self) -> str:
        """The account and its quota, in a few words."""

    def send_tree(self, run: Run, say: Callable[[str], None]) -> str:
        """Make ready what a run works on, so that segments can be packed; return what was done."""

    def reference(self, run: str, segment: int) -> str:
        """Return the name by which the service will know a segment."""

    def pack(self, run: Run, record: SegmentRecord) -> Packed:
        """Return a segment's script. What is too large for it is uploaded."""

    def push(self, record: SegmentRecord, packed: Packed) -> None:
        """Push a segment, once. Raises UnsettledError if it may have been accepted."""

    def is_full(self, error: ServiceError) -> bool:
        """Whether a push was refused only because too many sessions run."""

    def exists(self, ref: str) -> bool:
        """Whether the service has a segment."""

    def look(self, ref: str) -> Look:
        """Return what the service says of a segment."""

    def follow(self, ref: str, position: int) -> Iterator[LogPiece | None]:
        """Yield the pieces of a segment's log from a position on until its end; `None` now and then."""

    def outputs(self, ref: str, run: str) -> Iterator[Output]:
        """Yield the files of a run's folder that a segment has left."""

    def delete(self, ref: str) -> None:
        """Delete a segment with its outputs, which ends it if it runs. One that is gone is no error."""

    def names(self, words: str) -> list[str]:
        """Return the names of all segments that have some words in their names."""

    def unpack(self, ref: str, folder: Path) -> SegmentRecord | None:
        """Unpack what a segment carries of its run into a folder; `None` if it is no segment of ours."""


class Segments:
    """The segments of the runs below a root."""

    def __init__(self, service: Service, root: Path, *, keeps_kernels: bool = False) -> None:
        """Nothing is asked of the service yet."""
        self.service = service
        self._root = root
        self._keeps = keeps_kernels

    def run(self, run: str) -> Run:
        """Return a run's folder in the spool."""
        return Run(str(self._root / "runs" / run))

    def record(self, run: str) -> SegmentRecord | None:
        """Return what is on record of a run's latest segment; `None` before the first."""
        try:
            text = self._path(run, RECORD).read_text()
            return SegmentRecord.model_validate_json(text)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise RunError(
                f"{self._path(run, RECORD)}: cannot be read: {str(error).splitlines()[0]}"
            ) from None

    # push

    def push(self, run: str) -> SegmentRecord:
        """Push a run's next segment. If the service has no room for it, it is left `waiting`.

        Raises ServiceError, with the segment on record as over, if it is refused.
        """
        with self._locked(run):
            for _ in range(PUSHES):
                record = self._push(run, self.record(run))
                if record.status != "over":
                    return record
        raise HostError(self.service.name, f"{self.service.name}: {PUSHES} pushes of {run} were lost")

    def _push(self, run: str, before: SegmentRecord | None) -> SegmentRecord:
        segment = 1 if before is None else before.segment + 1
        ref = self.service.reference(run, segment)
        kept = {} if before is None else before.model_dump(include={*_KEPT})
        record = SegmentRecord(
            run=run,
            segment=segment,
            ref=ref,
            status="unsettled",
            words="it is being pushed",
            time=time.time(),
            **kept,
        )
        packed = self.service.pack(self.run(run), record)
        record = _with(record, session_s=packed.session_s, datasets=packed.datasets, time=time.time())
        Spool(Path(self.run(run).path), segment)  # its folders are those after the ones that are here now
        self._write(run, record)  # before the call: what may exist must be on record
        try:
            self.service.push(record, packed)
        except UnsettledError:
            return self._settle(run, record)
        except ServiceError as error:
            if not self.service.is_full(error):
                self._write(run, _over(record, str(error).splitlines()[0]))
                raise
            wait_s = max(error.retry_s or 0.0, BACK_OFF_S[min(record.tries, len(BACK_OFF_S) - 1)])
            words = str(error).splitlines()[0]
            record = _with(
                record, status="waiting", words=words, retry_at=time.time() + wait_s, tries=record.tries + 1
            )
            return self._write(run, record)
        return self._write(run, _with(record, status="sent", words="", tries=0))

    def _settle(self, run: str, record: SegmentRecord) -> SegmentRecord:
        """Find out whether a push was accepted. One that never shows is over; it is deleted should it appear later."""
        until = record.time + SETTLE_S
        while not self.service.exists(record.ref):
            if time.time() >= until:
                lost = _over(record, "its push never arrived")
                return self._write(run, _with(lost, earlier=(*record.earlier, record.ref)))
            time.sleep(SETTLE_EVERY_S)
        return self._write(run, _with(record, status="sent", words="", tries=0))

    # watch

    def look(self, run: str) -> SegmentRecord | None:
        """Ask the service about a run's latest segment, unless it is over; return its record.

        One that has ended is left as running until what it wrote has come home: see `bring_home`.
        """
        record = self.record(run)
        if record is None or not record.is_live or record.status == "waiting":
            return record
        with self._locked(run):
            record = self.record(run)
            if record is None or not record.is_live or record.status == "waiting":
                return record
            if record.status == "unsettled":
                return self._settle(run, record)
            seen = self.service.look(record.ref)
            if seen.status == "deleted":
                return self._write(run, _over(record, seen.words, "deleted"))
            now = time.time()
            if seen.status == "over":
                return self._write(run, _with(record, words=seen.words, time=now, began=record.began or now))
            began = record.began or (now if seen.status == "running" else None)
            record = _with(record, status=seen.status, words=seen.words, time=now, began=began)
            if began is not None and now > began + record.session_s + _overdue_s(record.session_s):
                self.service.delete(record.ref)
                return self._write(
                    run, _over(record, "it did not end at its limit, and was deleted", "deleted")
                )
            return self._write(run, record)

    def has_ended(self, record: SegmentRecord) -> bool:
        """Whether the service says that a segment has ended, by asking it."""
        return (
            record.is_live
            and record.status in ("sent", "queued", "running")
            and self.service.look(record.ref).status in ("over", "deleted")
        )

    def note(self, run: str, words: str) -> None:
        """Record what is to be shown of a segment that runs."""
        with self._locked(run):
            record = self._known(run)
            if record.is_live:
                self._write(run, _with(record, words=words))

    def try_to_feed(self, run: str, wait_s: float = 0.0) -> Lock | None:
        """Take the lock under which a run's folder is fed; `None` if another process feeds it."""
        return Lock.take(str(self._path(run, FEED_LOCK)), wait_s)

    # home

    def bring_records(self, run: str) -> SegmentRecord:
        """Bring the record of a segment that has ended home, and call it over. The caller holds the feed's lock."""
        record = self._known(run)
        problem = ""
        try:
            listed = self.service.outputs(record.ref, run)
            recorded = (file for file in listed if file.path.startswith("record/"))
            problem = _differing(Spool(Path(self.run(run).path), record.segment).settle(recorded))
        except ServiceError as error:
            if error.reason not in GONE:
                raise
            problem = "its outputs are gone"
        with self._locked(run):
            record = self._known(run)
            words = "; ".join(filter(None, (record.words, problem)))
            return self._write(run, _with(record, status="over", words=words, time=time.time()))

    def bring_home(self, run: str, heard: Heard) -> SegmentRecord:
        """Bring everything that a segment has left home, if it is not; `heard` gets the bytes that came so far.

        The caller holds the feed's lock, and the segment is over. What was brought before an interruption stays.
        """
        record = self._known(run)
        if record.is_home:
            return record
        folder = self.run(run)
        brought = _Brought(self._path(run, f"home-{record.segment}.txt"))
        count = 0

        def pending() -> Iterator[Output]:
            nonlocal count
            for file in self.service.outputs(record.ref, run):
                if not file.path.startswith("record/") and file.path not in brought:
                    yield file._replace(pieces=_counted(file.pieces, add))
                    brought.add(file.path)

        def add(size: int) -> None:
            nonlocal count
            count += size
            heard(count)

        try:
            Spool(Path(folder.path), record.segment).settle(pending())
        except ServiceError as error:
            if error.reason not in GONE:
                raise
        with self._locked(run):
            record = self._write(run, self._at_home(folder, self._known(run)))
            return self._delete_earlier(run, record)

    def _at_home(self, folder: Run, record: SegmentRecord) -> SegmentRecord:
        """Return the record of a segment whose outputs are home: what the next one needs, and what can be deleted."""
        newest = checkpoints.newest(folder.checkpoints)
        last = folder.last()
        has_ended = last is not None and last.read_state().get("state") in TERMINAL
        is_fruitful = newest is not None and newest != record.checkpoint
        no_longer = [] if record.source is None or not (is_fruitful or has_ended) else [record.source]
        if has_ended or not is_fruitful:
            no_longer.append(record.ref)
        source = record.ref if is_fruitful else record.source
        return _with(
            record,
            is_home=True,
            source=None if has_ended else source,
            earlier=tuple(dict.fromkeys((*record.earlier, *no_longer))),
            checkpoint=newest,
            fruitless=0 if is_fruitful or has_ended else record.fruitless + 1,
        )

    def _delete_earlier(self, run: str, record: SegmentRecord) -> SegmentRecord:
        """Delete the segments that nothing needs any more, unless kernels are kept."""
        if self._keeps:
            return record
        left = []
        for ref in record.earlier:
            try:
                self.service.delete(ref)
            except ServiceError:  # the next contact tries again
                left.append(ref)
        return self._write(run, _with(record, earlier=tuple(left)))

    # runs of other clients

    def adopt(self, words: str = "") -> list[str]:
        """Take runs into the spool that other clients of the account began; return their ids.

        `words` are those of an id. A run comes without what it has printed, which its segment sends again.
        """
        runs = self._root / "runs"
        runs.mkdir(exist_ok=True, mode=0o700)
        known = {self.service.reference(run.name, 1).rpartition("-")[0] for run in runs.iterdir()}
        newest: dict[str, int] = {}
        for name in self.service.names(words):
            stem, _, number = name.rpartition("-")
            if stem not in known and number.isdecimal() and int(number) > newest.get(stem, 0):
                newest[stem] = int(number)
        return [run for stem, number in newest.items() if (run := self._adopt(f"{stem}-{number}"))]

    def _adopt(self, ref: str) -> str | None:
        folder = Path(tempfile.mkdtemp(prefix=".adopted-", dir=self._root))
        try:
            record = self.service.unpack(ref, folder)
            if record is None:
                return None
            run = Run(str(folder))
            for path in (run.control, run.record, run.work, run.code):
                os.makedirs(path, mode=0o755, exist_ok=True)
            self._write_in(Path(run.control), record)
            folder.chmod(0o755)
            with contextlib.suppress(OSError):  # another process was faster
                folder.rename(self._root / "runs" / record.run)
            return record.run
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # end

    def end(self, run: str) -> None:
        """End a run's segment by deleting it, which loses what it has not printed."""
        record = self.look(run)
        if record is None or not record.is_live:
            return
        with self._locked(run):
            record = self._known(run)
            if record.status != "waiting":
                self.service.delete(record.ref)
            self._write(run, _over(record, "it was deleted, to stop it", "deleted"))

    def delete_all(self, record: SegmentRecord) -> None:
        """Delete what the service still has of a run that was removed."""
        for ref in dict.fromkeys((*record.earlier, *filter(None, (record.source, record.ref)))):
            self.service.delete(ref)

    # the record

    def _known(self, run: str) -> SegmentRecord:
        record = self.record(run)
        if record is None:
            raise RunError(f"{run}: no segment of it is on record")
        return record

    def _write(self, run: str, record: SegmentRecord) -> SegmentRecord:
        """Replace the record, durably."""
        return self._write_in(Path(self.run(run).control), record)

    def _write_in(self, control: Path, record: SegmentRecord) -> SegmentRecord:
        path = control / RECORD
        part = control / f".{RECORD}.{os.getpid()}"
        with part.open("w") as file:
            file.write(record.model_dump_json() + "\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        return record

    def _path(self, run: str, name: str) -> Path:
        return Path(self.run(run).control) / name

    @contextlib.contextmanager
    def _locked(self, run: str) -> Iterator[None]:
        lock = Lock.take(str(self._path(run, LOCK)), LOCK_S)
        if lock is None:
            words = f"{self.service.name}: another process is at {run}\n  again   launch ps"
            raise HostError(self.service.name, words)
        try:
            yield
        finally:
            lock.release()


GONE = ("not-found", "forbidden")
"""Why a service does not list the outputs of a segment that somebody has deleted."""
_KEPT = ("source", "earlier", "checkpoint", "fruitless", "tries")
"""What a segment takes over from the one before it."""


class _Brought:
    """The paths that have come home of a segment, kept over interruptions."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._paths = {*path.read_text().splitlines()}
        except FileNotFoundError:
            self._paths = set()

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def add(self, path: str) -> None:
        self._paths.add(path)
        with self._path.open("a") as file:
            file.write(path + "\n")


def _differing(settled: Settled) -> str:
    """Say which files were not as the live view had them; one that had only begun is no news."""
    if not settled.replaced:
        return ""
    return f"{', '.join(settled.replaced[:3])} came otherwise than it was printed"


def _counted(pieces: Iterator[bytes], add: Heard) -> Iterator[bytes]:
    for piece in pieces:
        add(len(piece))
        yield piece


def _overdue_s(session_s: float) -> float:
    return min(OVERDUE_S, 60.0 + session_s / 4)


def _with(record: SegmentRecord, **changes: object) -> SegmentRecord:
    return record.model_copy(update=changes)


def _over(record: SegmentRecord, words: str, status: SegmentStatus = "over") -> SegmentRecord:
    return _with(record, status=status, words=words, time=time.time(), is_home=True)
