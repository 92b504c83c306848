"""The segments of the runs in a spool: push each once, watch it until it is over, download it and delete it.

A segment is one session of a run in a cloud service that runs a script to its end. The record of the latest
segment (`SegmentRecord`) is in the run's folder, where every client of the spool and the run's LivenessProbe
find it. Two locks guard a run: `service.lock` for each call that changes something at the service, and
`feed.lock` for the one process that writes the service's output into the run's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol

from pydantic import Field, ValidationError

from launcher.agent.record import strict_json
from launcher.agent.record.files import write_durably
from launcher.agent.record.frame import read_path
from launcher.agent.record.locks import Lock
from launcher.agent.record.rundir import TERMINAL, Run
from launcher.agent.store import checkpoints
from launcher.backends.spool.segment_record import SegmentRecord, SegmentStatus
from launcher.backends.spool.spool import OutputChanges, Spool
from launcher.backends.spool.spool_trees import KeptTree
from launcher.base.text import printable
from launcher.errors import HostError, RunError, ServiceError, ServiceUnreachableError, UnknownOutcomeError
from launcher.transport.client.host_client import Heard, unheard
from launcher.values.base import Record

APPEAR_S = 600.0
"""Seconds in which the service may not show a push that it has accepted.

Users saw two to five minutes of 403 after a push (2026-09); others wait half an hour before they give up.
"""
OUTPUTS_S = 600.0
"""Seconds in which the service may not list the outputs of a session that has run to its end."""
SETTLE_S = 20.0
"""The longest time, in seconds, that a launch waits for a push without an answer to appear."""
SETTLE_EVERY_S = 3.0
BACK_OFF_S = (30.0, 60.0, 120.0, 300.0)
"""The waits in seconds before a push is repeated, if the service had no room."""
OVERDUE_S = 900.0
"""The most seconds beyond its limit that a session may be reported as running before it is ended; see `is_overdue`.

Others have reported sessions that never end (APIS of Kaggle, unsloth's tests, 2026-08).
"""
MAX_REFUSED = 20
LOCK_S = 90.0
ASKED = ("unsettled", "sent", "queued", "running")
"""The statuses for which the service is asked, because they may have changed."""
NO_LIVE_VIEW = "no live view"
"""The beginning of a segment's `words` while the log of its session cannot be followed."""
RECORD, LOCK, FEED_LOCK = "service.json", "service.lock", "feed.lock"
LEFT = "left"
"""The folder for records of runs that were removed here, but not yet from the service."""


class SegmentLook(NamedTuple):
    """The service's status of a segment, and the reason of its end.

    The status is None if it is not reported now. `is_complete`: its script has run to its end, so it must have
    left outputs.
    """

    status: SegmentStatus | None
    words: str = ""
    is_complete: bool = False


class Packed(NamedTuple):
    """A segment ready to be pushed: its script, its machine, its time limit, and the datasets that it mounts."""

    script: str
    machine: str
    session_s: float
    datasets: tuple[str, ...] = ()


class SegmentOutput(NamedTuple):
    """An output file of a segment: its path below the run's folder, and its bytes, downloaded on reading."""

    path: str
    pieces: Iterator[bytes]


class LogPiece(Record):
    """A piece of a segment's log: its place in the stream, counted from 0, and its text."""

    position: Annotated[int, Field(ge=0)]
    stream: str
    text: str


class LeftoverSegment(NamedTuple):
    """A segment of a run that may still exist at the service, but is not needed here.

    `is_lost`: the service did not show it when it was needed or deleted.
    """

    ref: str
    run: str
    is_lost: bool = False


class Service(Protocol):
    """A cloud service that runs scripts: the methods that segments use. Each may raise ServiceError."""

    name: str

    @property
    def about(self) -> str:
        """The account and its quota, in a few words."""

    def send_tree(self, run: Run, say: Callable[[str], None]) -> str:
        """Prepare a run's work files so that segments can be packed. Return a description."""

    def trees(self) -> Sequence[KeptTree]:
        """Return the uploads of this spool for runs."""

    def delete_tree(self, slug: str) -> bool:
        """Delete an upload of this spool, unless a run needs it. Return whether it is gone."""

    def reference(self, run: str, segment: int) -> str:
        """Return the service's name for a segment."""

    def pack(self, run: Run, record: SegmentRecord) -> Packed:
        """Return a segment's script. Files too large for it are uploaded."""

    def push(self, record: SegmentRecord, packed: Packed) -> None:
        """Push a segment, once. Raises UnknownOutcomeError if it may have been accepted."""

    def is_full(self, error: ServiceError) -> bool:
        """Whether a push was refused only because too many sessions run."""

    def exists(self, ref: str) -> bool:
        """Whether the service has a segment. A refusal to show one does not prove that it is missing."""

    def look(self, ref: str) -> SegmentLook:
        """Return the service's status of a segment."""

    def now(self) -> float:
        """Return the service's time in seconds since 1970: this machine's clock may jump."""

    def follow(self, ref: str, position: int) -> Iterator[LogPiece | None]:
        """Yield the pieces of a segment's log from a position to its end, and sometimes `None`."""

    def outputs(self, ref: str, run: str) -> Iterator[SegmentOutput]:
        """Yield the output files of a segment that belong to a run's folder."""

    def delete(self, ref: str) -> bool:
        """Delete a segment with its outputs, which ends it if it runs. Return False if the service shows none."""

    def names(self, words: str) -> Mapping[str, float | None]:
        """Return all segments whose names contain some words, and when each was pushed, if that is known.

        The times are in seconds since 1970.
        """

    def unpack(self, ref: str, folder: Path) -> SegmentRecord | None:
        """Unpack the run in a segment's payload into a folder; `None` if the segment is not launcher's."""


class Segments:
    """The segments of the runs below a root."""

    def __init__(self, service: Service, root: Path, *, keeps_kernels: bool = False) -> None:
        """Store the arguments. The service is not contacted."""
        self.service = service
        self._root = root
        self._keeps = keeps_kernels

    def run(self, run: str) -> Run:
        """Return a run's folder in the spool."""
        return Run(str(self._root / "runs" / run))

    def record(self, run: str) -> SegmentRecord | None:
        """Return the record of a run's latest segment; `None` before the first."""
        try:
            text = self._path(run, RECORD).read_text()
            return SegmentRecord.model_validate_json(text)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            path = self._path(run, RECORD)
            mend = f"remove the damaged record   rm {path}"
            raise RunError(f"{path}: cannot be read: {str(error).splitlines()[0]}\n  {mend}") from None

    def state(self, run: str) -> object:
        """Return the state of a run from its record in the spool; `None` before the first."""
        last = self.run(run).last()
        return last.read_state().get("state") if last is not None else None

    def has_ended(self, run: str) -> bool:
        """Whether a run has ended, by its record in the spool."""
        return self.state(run) in TERMINAL

    # push

    def push(self, run: str) -> SegmentRecord:
        """Push a run's next segment, unless another client has.

        Return its record. Its status may be `waiting`, see `is_full`, or `unsettled`: a client that follows the
        run settles it. Raises ServiceError if the push is refused; the record then says that the segment has
        ended.
        """
        record = self._push(run)
        until = time.monotonic() + SETTLE_S
        while record.status == "unsettled" and time.monotonic() < until:
            time.sleep(SETTLE_EVERY_S)
            record = self.look(run) or record
        return record

    def _push(self, run: str) -> SegmentRecord:
        with self._locked(run):
            before = self.record(run)
            if before is not None and before.is_live and before.status != "waiting":
                return before  # another process was faster
            if before is not None and (taken := self._take_over(run, before)) is not None:
                return taken
            record = self._next(run, before)
            packed = self.service.pack(self.run(run), record)
            now = time.time()
            record = _with(record, session_s=packed.session_s, time=now, pushed_at=now)
            Spool(Path(self.run(run).path), record.segment)  # records the last folder before the segment's
            self._write(run, record)  # before the call: a segment that may exist must be on record
            return self._write(run, self._pushed(run, record, packed))

    def _next(self, run: str, before: SegmentRecord | None) -> SegmentRecord:
        """Return the record of the next segment. Its name is new: a refused push may have taken the one before."""
        segment = 1 if before is None else before.segment + 1
        ref = self.service.reference(run, segment)
        record = SegmentRecord(
            run=run,
            segment=segment,
            ref=ref,
            status="unsettled",
            words="it is being pushed",
            time=time.time(),
            pushed=(ref,),
        )
        if before is None:
            return record
        kept: dict[str, object] = {name: getattr(before, name) for name in _KEPT}
        if before.source is not None and not self.service.exists(before.source):
            kept["source"] = None  # the source was deleted; its outputs are downloaded
        others = None if before.other_client is None else "earlier"
        return _with(record, **kept, pushed=(*before.pushed, ref), other_client=others)

    def _pushed(self, run: str, record: SegmentRecord, packed: Packed) -> SegmentRecord:
        """Push a recorded segment and return its new record. Raises ServiceError."""
        try:
            self.service.push(record, packed)
        except UnknownOutcomeError as error:
            return _with(record, words=str(error).splitlines()[0])
        except ServiceError as error:
            words = str(error).splitlines()[0]
            if self.service.is_full(error):
                with contextlib.suppress(ServiceError):  # usually nothing is there
                    self.service.delete(record.ref)
                return _waiting(_without(record, record.ref), words, error.retry_s or 0.0)
            is_undone = error.reason in UNDONE  # the segment existed for a moment, and may still exist
            self._write(run, _over(record if is_undone else _without(record, record.ref), words, "home"))
            raise
        return _sent(record)

    def _unseen(self, record: SegmentRecord, words: str) -> SegmentRecord:
        """Return the record of a segment that the service does not show.

        A push may appear within APPEAR_S. One that never appears is lost, and is pushed again under another
        name. One that has been there was deleted. Both stay on record: one that appears later is deleted.
        """
        if may_appear(record):
            return _with(record, words=f"{self.service.name} does not show it yet")
        if record.status in ("unsettled", "sent"):
            return _waiting(_lost(record, record.ref), "its push never appeared", 0.0)
        return _over(_lost(record, record.ref), words, "deleted")

    def _delete(self, record: SegmentRecord, ref: str) -> SegmentRecord:
        """Delete a segment of a run. One of this client that may not be shown yet stays on record as lost."""
        is_gone = self.service.delete(ref) or ref not in _refs(record) or not may_appear(record)
        return _without(record, ref) if is_gone else _lost(record, ref)

    def _delete_late_pushes(self, record: SegmentRecord) -> SegmentRecord:
        """Delete lost pushes of a run that have appeared."""
        for ref in record.lost:
            if ref != record.ref or not record.is_live:
                record = self._delete(record, ref) if self.service.exists(ref) else record
        return record

    # watch

    def advance(self, run: str, heard: Heard | None = None, *, feeds: bool = False) -> SegmentRecord | None:
        """Update a run from the service. Return the record of its latest segment, `None` before the first.

        The record of an ended segment is downloaded; with `heard`, which gets the number of bytes so far, its
        other files are too. `feeds`: the caller holds the feed lock. If another process holds the lock, that
        process downloads the record. Without `heard` and `feeds`, a later segment that another client pushed
        is taken over.
        """
        while (record := self.look(run)) is not None:
            if record.status == "ended" or (record.status == "over" and heard is not None):
                lock = None if feeds else self.try_to_feed(run)
                if lock is None and not feeds:
                    return record
                try:
                    self._download(record, heard or unheard)
                finally:
                    if lock is not None:
                        lock.release()
            elif feeds or heard or record.is_live or self.has_ended(run) or not self._catch_up(run):
                return record
        return None

    def look(self, run: str) -> SegmentRecord | None:
        """Ask the service about a run's latest segment, unless it is over. Return its record."""
        record = self.record(run)
        if record is None or record.status not in ASKED:
            return record
        with self._locked(run):
            record = self._known(run)
            if record.status not in ASKED:
                return record
            return self._write(run, self._looked(self._delete_late_pushes(record)))

    def _looked(self, record: SegmentRecord) -> SegmentRecord:
        if record.status == "unsettled":
            is_there = self.service.exists(record.ref)
            return _sent(record) if is_there else self._unseen(record, record.words)
        seen, now = self.service.look(record.ref), time.time()
        if seen.status == "deleted":
            return self._unseen(record, seen.words)
        status = "ended" if seen.status == "over" else seen.status or record.status
        its_now = self.service.now()
        began = record.began or (its_now if status in ("running", "ended") else None)
        has_no_view = status == "running" and record.words.startswith(NO_LIVE_VIEW)
        words = seen.words or (record.words if has_no_view else "")
        record = _with(
            record, status=status, words=words, time=now, began=began, is_complete=seen.is_complete
        )
        if status == "ended" or not is_overdue(record, its_now):
            return record
        if next(self.service.outputs(record.ref, record.run), None) is not None:
            return _with(
                record, status="ended", words="it has ended, although the service still reports it as running"
            )
        return _over(self._delete(record, record.ref), "it did not end at its limit, and was deleted", "gone")

    def note(self, run: str, words: str) -> None:
        """Record a message to show for a running segment."""
        with self._locked(run):
            record = self._known(run)
            if record.is_live:
                self._write(run, _with(record, words=words))

    def try_to_feed(self, run: str, wait_s: float = 0.0) -> Lock | None:
        """Take the lock for feeding a run's folder; `None` if another process feeds it."""
        return Lock.take(str(self._path(run, FEED_LOCK)), wait_s)

    @contextlib.contextmanager
    def disk_errors(self) -> Iterator[None]:
        """Turn an error of the spool's disk into a HostError that names it."""
        try:
            yield
        except OSError as error:
            words = f"{error.filename or self._root}: {error.strerror or error}"
            mend = "the run is not affected; fix this, then repeat the command"
            raise HostError(self.service.name, f"{words}\n  {mend}") from error

    # download

    def _download(self, record: SegmentRecord, heard: Heard) -> None:
        """Download the record of a segment that has ended, or all other files of one that is over.

        `heard` gets the number of bytes so far. The caller holds the feed lock. Files downloaded before an
        interruption stay. Raises ServiceUnreachableError if the service lists fewer files than it must have.
        """
        run, is_record = record.run, record.status == "ended"
        if self._known(run).status != record.status:
            return  # another process was faster
        brought = _PathList(self._path(run, f"home-{record.segment}.txt"))
        count = 0

        def pending() -> Iterator[SegmentOutput]:
            for file in self._listed(record):
                if file.path.startswith("record/"):
                    if is_record:
                        yield file
                elif not is_record and file.path not in brought:
                    yield file._replace(pieces=counted(file.pieces))
                    brought.add(file.path)

        def counted(pieces: Iterator[bytes]) -> Iterator[bytes]:
            nonlocal count
            for piece in pieces:
                count += len(piece)
                heard(count)
                yield piece

        problem, settled = "", OutputChanges((), (), {})
        try:
            with self.disk_errors():
                settled = Spool(Path(self.run(run).path), record.segment).settle(pending())
        except ServiceError as error:
            self._check_gone(error, record, record.ref)
            problem = "its outputs are gone"
        with self._locked(run):
            record = self._known(run)
            said = problem or (_differing(settled) if is_record else "")
            if said and said not in record.words:
                record = _with(record, words="; ".join(filter(None, (record.words, said))))
            if is_record:
                self._write(run, _over(record, record.words, "over"))
                return
            record = _with(self._with_all_files(record), refused=_first(settled.refused))
            self._delete_unneeded(run, self._write(run, _with(record, status="gone") if problem else record))

    def _listed(self, record: SegmentRecord) -> Iterator[SegmentOutput]:
        """Yield the outputs of a segment. At the end, raise ServiceUnreachableError if some are missing.

        All paths that were ever listed must be listed again: a segment is deleted once its files are here.
        """
        known = _PathList(self._path(record.run, f"listed-{record.segment}.txt"))
        seen = set[str]()
        for file in self.service.outputs(record.ref, record.run):
            seen.add(file.path)
            known.add(file.path)
            yield file
        is_early = record.status == "ended" and time.time() < record.time + OUTPUTS_S
        if known.paths - seen or (is_early and record.is_complete and not seen):
            raise self._unavailable(record.ref, "malformed")

    def _unavailable(self, ref: str, reason: str) -> ServiceUnreachableError:
        words = f"{self.service.name}: the outputs of {ref} are not available at the moment"
        return ServiceUnreachableError(self.service.name, reason, words)

    def _check_gone(self, error: ServiceError, record: SegmentRecord, ref: str) -> None:
        """Raise the error unless it means that a segment is gone.

        If the segment exists, or may not be shown yet, raise ServiceUnreachableError, so that the caller asks
        again later.
        """
        if error.reason not in GONE:
            raise error
        if may_appear(record) or self.service.exists(ref):
            raise self._unavailable(ref, error.reason) from error

    def _with_all_files(self, record: SegmentRecord) -> SegmentRecord:
        """Return the record of a segment after the download of its outputs, with the next segment's source."""
        newest = checkpoints.newest(self.run(record.run).checkpoints)
        has_ended = self.has_ended(record.run)
        is_fruitful = newest is not None and newest != record.checkpoint
        source = record.ref if is_fruitful else record.source
        if has_ended and source in record.pushed:
            source = None  # another client's source stays on record: a stop deletes it
        fruitless = 0 if is_fruitful or has_ended else record.fruitless + 1
        return _with(record, status="home", source=source, checkpoint=newest, fruitless=fruitless)

    def _delete_unneeded(self, run: str, record: SegmentRecord) -> None:
        """Delete the segments that are not needed any more, unless kernels are kept.

        If a segment brought no new checkpoint, the segments before it are still needed.
        """
        needed = {record.source, *record.lost}
        if record.refused or (record.other_client is not None and self.has_ended(run)):
            needed.add(record.ref)
        for ref in record.pushed:
            if self._keeps or ref in needed or (record.fruitless and ref != record.ref):
                continue
            with contextlib.suppress(ServiceError):  # the end of the next segment, or `gc`, tries again
                record = self._write(run, self._delete(record, ref))

    # other clients of the account

    def adopt(self, words: str = "") -> list[str]:
        """Take into the spool the runs that other clients of the account began. Return their ids.

        `words` are a part of the ids to look for. The printed output of such a run is missing until it is
        read again from its segment.
        """
        runs = self._root / "runs"
        runs.mkdir(exist_ok=True, mode=0o700)
        removed = (path.stem for path in (self._root / LEFT).glob("*.json"))
        known = {
            _stem(self.service.reference(run, 1)) for run in [*removed, *(run.name for run in runs.iterdir())]
        }
        listed = self.service.names(words)
        for left in self.kept():
            if left.is_lost and left.ref in listed:  # a push that appears late
                self.discard(left)
        newest: dict[str, int] = {}
        for name in listed:
            stem, number = _stem(name), _number(name)
            if stem not in known and number > newest.get(stem, 0):
                newest[stem] = number
        return [run for stem, number in newest.items() if (run := self._adopt(f"{stem}-{number}"))]

    def _adopt(self, ref: str) -> str | None:
        with self._unpacked(ref) as (folder, record):
            if record is None:
                return None
            run = Run(str(folder))
            for path in (run.control, run.record, run.work, run.code):
                os.makedirs(path, mode=0o755, exist_ok=True)
            self._write_at(Path(run.control, RECORD), record)
            folder.chmod(0o755)
            with contextlib.suppress(OSError):  # another process was faster
                folder.rename(self._root / "runs" / record.run)
            return record.run

    def _catch_up(self, run: str) -> bool:
        """Take over a later segment of a run that another client has pushed; return whether one exists."""
        with self._locked(run):
            before = self._known(run)
            return not before.is_live and self._take_over(run, before) is not None

    def check_goes_on_here(self, run: str) -> None:
        """Raise RunError if another client seems to have continued a run, but its progress cannot be found.

        That client deletes the segments that it does not need any more.
        """
        record = self.record(run)
        if record is None or record.other_client is None:
            return
        gone = record.ref if record.other_client == "latest" and record.are_files_lost else None
        is_learnt = record.status in (
            "home",
            "gone",
            "deleted",
        )  # else its files may still show the run's end
        if gone is None and is_learnt and record.source is not None and record.source not in record.pushed:
            gone = None if self.service.exists(record.source) else record.source
        if gone is not None:
            short = run.rpartition("-")[2]
            raise RunError(
                f"{run}: {gone} is gone: another client continued or stopped the run, or the kernel was deleted\n"
                f"  from the checkpoint that is here   launch stop {short}   then   launch resume {short}"
            )

    def _take_over(self, run: str, before: SegmentRecord) -> SegmentRecord | None:
        """Take over a later segment of a run that another client has pushed; `None` without one.

        Its payload has the state at its start. Output printed in the segments between is missing here.
        """
        following = self.service.reference(run, before.segment + 1)
        names = [name for name in self.service.names(run) if _stem(name) == _stem(following)]
        later = max(names, key=_number, default=following)
        if _number(later) <= before.segment or not (later in names or self.service.exists(later)):
            return None
        if later in before.lost:
            return None  # a late push of this client
        with self._unpacked(later) as (folder, found):
            if found is None or found.run != run or not Run(str(folder)).numbers():
                return None
            ours = self.run(run)
            theirs = Run(str(folder)).numbers()
            for number in theirs:
                if number not in ours.numbers():
                    os.rename(Run(str(folder)).folder(number).path, ours.folder(number).path)
            for number in ours.numbers():
                if number > theirs[-1] and ours.folder(number).read_attempt().get("kind") == "contact":
                    shutil.rmtree(ours.folder(number).path)  # superseded: this client's later contact folders
            Spool(Path(ours.path), found.segment, after=theirs[-1])
        return self._write(run, _with(found, pushed=before.pushed, lost=before.lost))

    @contextlib.contextmanager
    def _unpacked(self, ref: str) -> Iterator[tuple[Path, SegmentRecord | None]]:
        """Yield a temporary folder with the run in a segment's payload, and its record."""
        folder = Path(tempfile.mkdtemp(prefix=".adopted-", dir=self._root))
        try:
            yield folder, self.service.unpack(ref, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # end

    def end(self, run: str) -> None:
        """End a run's segment by deleting it. Data that it has not printed is lost.

        An ended segment is not deleted.
        """
        record = self.look(run)
        if record is None or not record.is_live:
            return
        with self._locked(run):
            record = self._known(run)
            if not record.is_live or record.status == "ended":
                return
            if record.status != "waiting":
                record = self._delete(record, record.ref)
            words = "it was deleted to stop it; output that it had not printed is lost"
            if record.ref in record.lost:
                words = f"{self.service.name} does not show its session yet, so it could not be deleted"
            self._write(run, _over(record, words, "gone"))

    def retire(self, run: str) -> None:
        """Delete the segments of a stopped run, so that no client continues it.

        The last segment must be over, with its outputs downloaded. If the outputs of an earlier segment that
        another client pushed are missing, they are downloaded first.
        """
        record = self.record(run)
        if record is None or record.is_live or record.status == "over":
            return
        with self._locked(run):
            record = self._known(run)
            if self._keeps:
                self._write(run, self._delete_late_pushes(record))
                return
            if record.source not in (None, record.ref, *record.pushed):
                self._download_source(record)
            everything = (record.ref, *filter(None, (record.source,)), *_refs(record))
            for ref in dict.fromkeys(everything):
                record = self._write(run, self._delete(record, ref))
            self._write(run, _with(record, source=None))

    def _download_source(self, record: SegmentRecord) -> None:
        """Download the work files of an earlier segment unless a later one brought a checkpoint."""
        folder = self.run(record.run)
        has_later = not record.are_files_lost and checkpoints.newest(folder.checkpoints) is not None
        if record.source is None or has_later:
            return
        try:
            listed = self.service.outputs(record.source, record.run)
            work = [file for file in listed if not file.path.startswith("record/")]
            if not work:  # it has a checkpoint
                raise self._unavailable(record.source, "malformed")
            Spool(Path(folder.path), record.segment).settle(work)
        except ServiceError as error:
            self._check_gone(error, record, record.source)

    @contextlib.contextmanager
    def removal(self, run: str) -> Iterator[None]:
        """Keep the names of a run's segments outside its folder while the run is removed; see `clear_away`."""
        record = self.record(run)
        of_others = () if record is None or record.other_client is None else (record.source, record.ref)
        everything = () if record is None else (*_refs(record), *filter(None, of_others))
        if record is None or not everything:
            yield
            return
        left = self._left(run)
        left.parent.mkdir(exist_ok=True, mode=0o700)
        self._write_at(left, _with(record, pushed=tuple(dict.fromkeys(everything))))
        try:
            yield
        finally:
            if self._path(run, RECORD).exists():  # the run was not removed
                left.unlink()

    def clear_away(self, run: str) -> None:
        """Delete the segments of a run that was removed here."""
        for kept in self.kept():
            if kept.run == run and not self._path(run, RECORD).exists():
                self.discard(kept)

    def kept(self) -> list[LeftoverSegment]:
        """Return the segments that this client pushed and that may still exist, but are not needed here."""
        found = []
        for path in sorted((self._root / "runs").glob(f"*/control/{RECORD}")):
            run = path.parent.parent.name
            with contextlib.suppress(RunError):  # an unreadable record must not hide the others
                record = self._known(run)
                needed = {None if self.has_ended(run) else record.source}
                needed |= {record.ref} if record.is_live or record.status == "over" else set()
                found += [left for left in _leftovers(record) if left.ref not in needed]
        for path in sorted((self._root / LEFT).glob("*.json")):
            with contextlib.suppress(OSError, ValidationError):
                record = SegmentRecord.model_validate_json(path.read_text())
                is_there = self._path(record.run, RECORD).exists()
                found += [] if is_there else _leftovers(record)
        return found

    def unknown(self) -> dict[str, float | None]:
        """Return the segments in the account that this client neither pushed nor took over.

        Each has the time of its push in seconds since 1970, if that is known.
        """
        known: set[str | None] = set()
        for path in (self._root / "runs").glob(f"*/control/{RECORD}"):
            with contextlib.suppress(RunError):
                record = self._known(path.parent.parent.name)
                known |= {*_refs(record), record.ref, record.source}
        known |= {left.ref for left in self.kept()}
        return {ref: pushed_at for ref, pushed_at in self.service.names("").items() if ref not in known}

    def discard(self, kept: LeftoverSegment) -> bool:
        """Delete a segment that is not needed here. Return False if the service does not show it."""
        left = self._left(kept.run)
        if self._path(kept.run, RECORD).exists():
            with self._locked(kept.run):
                record = self._write(kept.run, self._delete(self._known(kept.run), kept.ref))
        else:
            record = self._delete(SegmentRecord.model_validate_json(left.read_text()), kept.ref)
            self._write_at(left, record) if _refs(record) else left.unlink()
        return kept.ref not in record.lost

    # the record

    def _known(self, run: str) -> SegmentRecord:
        record = self.record(run)
        if record is None:
            raise RunError(f"{run}: no segment of it is on record")
        return record

    def _write(self, run: str, record: SegmentRecord) -> SegmentRecord:
        return self._write_at(self._path(run, RECORD), record)

    def _write_at(self, path: Path, record: SegmentRecord) -> SegmentRecord:
        """Replace a record, durably."""
        write_durably(str(path), f"{record.model_dump_json()}\n")
        return record

    def _left(self, run: str) -> Path:
        return self._root / LEFT / f"{run}.json"

    def _path(self, run: str, name: str) -> Path:
        return Path(self.run(run).control) / name

    @contextlib.contextmanager
    def _locked(self, run: str) -> Iterator[None]:
        lock = Lock.take(str(self._path(run, LOCK)), LOCK_S)
        if lock is None:
            words = f"{self.service.name}: another process works on {run}\n  again   launch ps"
            raise HostError(self.service.name, words)
        try:
            yield
        finally:
            lock.release()


GONE = ("not-found", "forbidden")
"""The reasons of a service for not listing the outputs of a deleted segment."""
UNDONE = ("invalid-sources", "conflict")
"""The reasons for deleting an accepted segment at once."""
_KEPT = ("source", "lost", "checkpoint", "fruitless", "tries")
"""The fields that a segment takes over from the one before it."""


def is_overdue(record: SegmentRecord, now: float) -> bool:
    """Whether a segment should have ended long ago, by the service's clock."""
    if record.began is None:
        return False
    return now > record.began + record.session_s + min(OVERDUE_S, 60.0 + record.session_s / 4)


def may_appear(record: SegmentRecord) -> bool:
    """Whether the service may not show a run's latest push yet."""
    return time.time() < record.pushed_at + APPEAR_S


def _refs(record: SegmentRecord) -> tuple[str, ...]:
    """Return the segments of a run that this client pushed and that may still exist."""
    return tuple(dict.fromkeys((*record.pushed, *record.lost)))


def _leftovers(record: SegmentRecord) -> list[LeftoverSegment]:
    return [LeftoverSegment(ref, record.run, ref in record.lost) for ref in _refs(record)]


def _stem(name: str) -> str:
    return name.rpartition("-")[0]


def _number(name: str) -> int:
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


class _PathList:
    """Paths of a segment's outputs, kept across interruptions.

    Each is a line of JSON, because a name may contain line breaks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.paths = set[str]()
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # cut short by a kill; that path is added again
                    self.paths.add(strict_json.decode(line))

    def __contains__(self, path: str) -> bool:
        return path in self.paths

    def add(self, path: str) -> None:
        if path not in self.paths:
            self.paths.add(path)
            with self._path.open("a") as file:
                file.write(json.dumps(path) + "\n")


def _differing(settled: OutputChanges) -> str:
    """Return a message about files that differ from their copies in the live view.

    A file whose copy is only its beginning is not reported. Nor is a file that is always replaced as a whole:
    it may have changed after it was last printed.
    """
    of_record = {path: read_path(path) for path in settled.replaced}
    changed = [path for path, known in of_record.items() if known is None or known.is_growing]
    return f"{', '.join(changed[:3])} differs from its printed copy" if changed else ""


def _first(refused: dict[str, str]) -> dict[str, str]:
    """Return the first refused outputs, in the form of the record."""
    return {printable(path): why for path, why in [*refused.items()][:MAX_REFUSED]}


def _with(record: SegmentRecord, **changes: object) -> SegmentRecord:
    return record.model_copy(update=changes)


def _without(record: SegmentRecord, gone: str) -> SegmentRecord:
    """Return a record without a segment that no longer exists."""
    pushed, lost = (tuple(ref for ref in refs if ref != gone) for refs in (record.pushed, record.lost))
    return _with(record, pushed=pushed, lost=lost)


def _lost(record: SegmentRecord, ref: str) -> SegmentRecord:
    """Return a record with a segment that is deleted if it appears."""
    pushed = tuple(one for one in record.pushed if one != ref)
    return _with(record, pushed=pushed, lost=tuple(dict.fromkeys((*record.lost, ref))))


def _sent(record: SegmentRecord) -> SegmentRecord:
    return _with(record, status="sent", words="", tries=0)


def _waiting(record: SegmentRecord, words: str, least_s: float) -> SegmentRecord:
    """Return the record of a segment to be pushed again. The wait grows with the number of tries."""
    wait_s = max(least_s, BACK_OFF_S[min(record.tries, len(BACK_OFF_S) - 1)])
    again = {"retry_at": time.time() + wait_s, "tries": record.tries + 1}
    return _with(record, status="waiting", words=words, **again)


def _over(record: SegmentRecord, words: str, status: SegmentStatus) -> SegmentRecord:
    return _with(record, status=status, words=words, time=time.time())
