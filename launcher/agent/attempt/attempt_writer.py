"""The writer of an attempt's records: it redacts the run's secrets, and withstands a full disk."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional

from ..record import secret, strict_json
from ..record.appender import Appender
from ..record.files import REFUSED, write_durably, write_over
from ..record.rundir import VERSION, RecordFolder
from ..record.safe_open import status_of
from ..record.strict_json import JsonObject
from .progress import AttemptProgress
from .stopping import RunTime

if TYPE_CHECKING:
    from ..record.run_records import AttemptRecord, EventRecord, EvidenceRecord

TAIL_BYTES = 256 * 1024
"""The number of bytes at the end of the log that show how the command ended."""
_KEYS_OF_WORKER = frozenset({"kind", "rank", "time"})
_ADDED_KEYS = frozenset({"version", "attempt"})


class Report(NamedTuple):
    """A line from a worker: its bytes, its text, and its event. The event is None if the line has none."""

    line: bytes
    text: str
    event: Optional[EventRecord]


def read_report(line: bytes) -> Report:
    """Read a line from a worker."""
    try:
        text = line.decode()
        event = strict_json.decode(text)
    except (ValueError, RecursionError):
        return Report(line, "", None)
    is_event = isinstance(event, dict) and isinstance(event.get("kind"), str)
    return Report(line, text, event if is_event else None)


class AttemptWriter:
    """Write the records of one attempt: attempt.json, state.json, events.jsonl, log.txt and the heartbeat.

    The run's secrets are replaced with stars. On a full disk, events and log wait in memory. A state or
    heartbeat that cannot be written is dropped, unless the state must be written.
    """

    def __init__(
        self,
        folder: RecordFolder,
        attempt: int,
        redactor: secret.Redactor,
        progress: AttemptProgress,
        run_time: RunTime,
        *,
        is_rehearsed: bool = False,
    ) -> None:
        """Open the files of a new folder.

        Each state that is written contains the current values of `progress` and the run's current running time.
        """
        self.folder = folder
        self.attempt = attempt
        self.has_begun = False
        self.state = "preparing"
        self._reason: Optional[str] = None
        self._redactor = redactor
        self._progress = progress
        self._run_time = run_time
        self._is_rehearsed = is_rehearsed
        self._events = Appender(folder.events)
        self._log = Appender(folder.log)
        self._output = secret.Redaction(redactor)
        self._added = ',"version":%d,"attempt":%d}' % (VERSION, attempt)

    @property
    def log_bytes(self) -> int:
        """The size of the log file in bytes."""
        try:
            return os.path.getsize(self.folder.log)
        except OSError:
            return 0

    def redact(self, value: Any) -> Any:
        """Return a JSON value with stars instead of secrets."""
        return self._redactor.redact(value)

    def write_attempt(self, record: AttemptRecord) -> None:
        """Write attempt.json. Values of the plan are not redacted, because the worker trains with them."""
        record = {**record, "previous": self.redact(record["previous"])}
        write_durably(self.folder.attempt, strict_json.encode(record) + "\n")

    def write_precision(self, record: EvidenceRecord) -> None:
        """Write the attempt's precision evidence. Raises OSError."""
        write_durably(self.folder.precision, strict_json.encode(self.redact(record)) + "\n")

    def say(self, state: str, reason: Optional[str] = None, *, must: bool = False, **more: Any) -> None:
        """Write the state. On a full disk, raise OSError if `must` is set; otherwise drop the state."""
        self.state, self._reason = state, reason
        progress = self._progress
        fields = {
            "attempt": self.attempt,
            "began": self.has_begun,
            "step": progress.step,
            "begins_at": progress.begins_at,
            "loss": progress.loss,
            "consumed": sorted(progress.consumed),
            "uses_worker": progress.uses_worker,
            "checkpoint": progress.checkpoint,
            "took_s": self._run_time.took_s,
            "save_s": progress.save_s,
            "rehearsed": self._is_rehearsed,
            "failure": progress.failure.record() if progress.failure is not None else None,
            **more,
        }
        try:
            self.folder.write_state(
                state, reason, **{name: self.redact(value) for name, value in fields.items()}
            )
        except OSError as error:
            if must or error.errno not in REFUSED:
                raise

    def sizes(self) -> Dict[str, int]:
        """Return the sizes of the files of events and log.

        A network file system shows new bytes late: a reader there waits until the files have these sizes.
        """
        paths = (self.folder.events, self.folder.log)
        return {os.path.basename(path): status_of(path).st_size for path in paths if os.path.exists(path)}

    def rewrite_state(self) -> None:
        """Write the same state again with the current values."""
        self.say(self.state, self._reason)

    def record(self, kind: str, values: JsonObject, step: Optional[int] = None) -> None:
        """Append one event."""
        self.write_events([{"kind": kind, "step": step, "values": values}])

    def write_events(self, events: List[EventRecord]) -> None:
        """Append events, each with version, attempt, rank and the host's clock."""
        self._append([self._line_of(event) for event in events])

    def write_reports(self, reports: List[Report]) -> None:
        """Append reports of workers. A line without an event is recorded as evidence.

        If a line lacks only version and attempt, they are appended to its text. That is faster than encoding it
        again: a metric may arrive every 20 µs.
        """
        lines = []
        for line, text, event in reports:
            if event is None:
                shown = self._redactor.redact_bytes(line)[:200].decode("utf-8", "replace")
                lines.append(self._line_of({"kind": "evidence", "values": {"not-an-event": shown}}))
            elif text[-1] == "}" and event.keys() >= _KEYS_OF_WORKER and not _ADDED_KEYS & event.keys():
                lines.append(text[:-1] + self._added)
            else:
                lines.append(self._line_of(event))
        if lines:
            self._append(lines)

    def _line_of(self, event: EventRecord) -> str:
        line = {"rank": 0, "step": None, "time": time.time(), **event}
        return strict_json.encode({**line, "version": VERSION, "attempt": self.attempt})

    def _append(self, lines: List[str]) -> None:
        text = "\n".join(lines)
        if self._redactor.is_in_json(text):
            text = "\n".join(strict_json.encode(self.redact(strict_json.decode(line))) for line in lines)
        self._events.append((text + "\n").encode())

    def write_output(self, piece: bytes) -> bytes:
        """Append the next bytes of the command's output to the log. Return them as written.

        The end of a piece is held back while it may be the start of a secret.
        """
        written = self._output.feed(piece)
        self._log.append(written)
        return written

    def finish_output(self) -> bytes:
        """Append the bytes that were held back. Return them as written."""
        written = self._output.finish()
        self._log.append(written)
        return written

    def log_tail(self, size: int) -> bytes:
        """Return the last bytes of the log."""
        return self._log.tail(size)

    def beat(self) -> None:
        """Write the heartbeat: the host's monotonic clock, the run's duration, the step and the loss.

        The file is overwritten in place, which needs no free space. So on a full disk, the heartbeat can still
        report that log or events are waiting in memory.
        """
        progress = self._progress
        doing = progress.liveness.doing
        record = {
            "monotonic_s": time.monotonic(),
            "took_s": self._run_time.took_s,
            "grace_s": progress.grace_s,
            "step": progress.step,
            "loss": self.redact(progress.loss),
            "refused": self._log.refused or self._events.refused,
            "silent_s": None if doing is None else progress.liveness.silent_s,
            "doing": doing,
        }
        try:
            write_over(self.folder.heartbeat, strict_json.encode(record) + "\n")
        except OSError as error:
            if error.errno not in REFUSED:
                raise
        self.flush()

    def flush(self) -> bool:
        """Write the data that waits for disk space. Return whether all of it is written."""
        return all([self._events.flush(), self._log.flush()])

    def sync_events(self) -> None:
        """Make the events durable. Raises OSError."""
        self._events.sync()
