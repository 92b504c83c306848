"""Feed a run's folder in the spool: from the log of its segment while it runs, then from its record.

One thread of one process feeds a run, under a lock. Other processes read the folder, and take over when that
process ends.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from launcher.backends.spool.segment_record import SegmentRecord
from launcher.backends.spool.segments import GONE, NO_LIVE_VIEW, Segments, is_overdue
from launcher.backends.spool.spool import Spool
from launcher.errors import ServiceError, ServiceUnreachableError

POLL_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between requests for a segment that is queued, or whose log cannot be followed."""
QUIET_S = 1.0
"""After this many seconds without new output, the log counts as completely read so far."""
CATCH_UP_S = 20.0
ASK_S = 300.0
"""Seconds between requests while a lost push may still appear."""
_LOG = logging.getLogger(__name__)


class Feeder:
    """Feeds one run in its own thread until it is closed or its segment is over."""

    def __init__(self, segments: Segments, run: str) -> None:
        """Start the thread."""
        self._segments = segments
        self._run = run
        self._is_closed = threading.Event()
        self._is_current = threading.Event()
        self._took = time.monotonic()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=f"feed {run}", daemon=True)
        self._thread.start()

    @property
    def is_working(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise the exception that ended the thread, if any. A second call raises nothing."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def catch_up(self, wait_s: float = CATCH_UP_S) -> None:
        """Wait until the folder has everything that the segment has sent so far, or another process feeds it."""
        until = time.monotonic() + wait_s
        while self.is_working and time.monotonic() < until:
            if self._is_current.is_set() and time.monotonic() - self._took > QUIET_S:
                return
            time.sleep(0.05)

    def close(self) -> None:
        """Let the thread end at its next piece. Nothing that it wrote is lost."""
        self._is_closed.set()

    def _work(self) -> None:
        try:
            while not self._is_closed.is_set():
                lock = self._segments.try_to_feed(self._run)
                if lock is None:  # another process feeds the run
                    self._is_current.set()
                    self._is_closed.wait(1.0)
                    continue
                try:
                    with self._segments.disk_errors():
                        self._feed()
                    return
                finally:
                    lock.release()
        except Exception as error:  # noqa: BLE001 - raised in the thread that reads the run
            self._error = error
        finally:
            self._is_current.set()

    def _feed(self) -> None:
        """Feed the run until its segment is over."""
        tries = 0
        while not self._is_closed.is_set():
            record = self._segments.advance(self._run, feeds=True)
            if record is None or not record.is_live:
                return
            if record.status == "waiting":
                self._is_current.set()
                if time.time() >= (record.retry_at or 0.0):
                    self._segments.push(self._run)
                else:
                    self._is_closed.wait(1.0)
                continue
            has_followed = record.status == "running" and self._follow(record)
            tries = 0 if has_followed else tries + 1
            self._is_current.set()
            self._is_closed.wait(POLL_S[min(tries, len(POLL_S) - 1)])

    def _follow(self, record: SegmentRecord) -> bool:
        """Read the log until it ends or the service must be asked. Return whether anything new arrived."""
        spool = Spool(Path(self._segments.run(self._run).path), record.segment)
        before, ask_at, is_noted = spool.position, time.monotonic() + ASK_S, bool(record.words)
        try:
            for piece in self._segments.service.follow(record.ref, spool.position):
                if piece is not None:
                    spool.take(piece.text, piece.stream)
                    self._took = time.monotonic()
                    self._is_current.set()
                    if is_noted:
                        self._segments.note(self._run, "")
                        is_noted = False
                is_due = is_overdue(record, self._segments.service.now())
                is_to_ask = is_due or (record.lost and time.monotonic() > ask_at)
                if is_to_ask or self._is_closed.is_set():
                    break
        except ServiceError as error:  # no live view: the segment's record arrives with its outputs
            if isinstance(error, ServiceUnreachableError):
                self._segments.look(self._run)  # raises if the whole service is unreachable, not only the log
            if error.reason not in GONE:
                _LOG.info("no live view of %s: %s", record.ref, error)
            self._segments.note(self._run, f"{NO_LIVE_VIEW}: {str(error).splitlines()[0]}")
        finally:
            spool.save()
        return spool.position > before
