"""A cache of summary lines of ended runs: `hosts/<host-id>/summaries-<format>`, one line per run.

    RUN <tab> STATE <tab> MARKS <tab> the summary, as JSON <tab> CRC-32 of the line so far

A line is valid while the marks (inode, size and times) of its source files are unchanged. Lines are only
displayed: a decision about a run reads the run's record. A job in a container cannot write to this file.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from typing import Dict, List, NamedTuple, Optional

from ..record.record_shape import MAX_BYTES as MAX_RECORD
from ..record.rundir import Run
from ..record.safe_open import APPENDING, open_regular, read_regular
from ..system import process

FORMAT = "5"
"""Part of the file's name. Change it whenever the contents of a summary change."""
MAX_BYTES = 32 * MAX_RECORD
SETTLED_S = 2.0
"""The least age, in seconds, of source files whose line is cached.

Two changes within one clock tick may leave the same marks.
"""
MAX_STALE = 1000


class CachedSummary(NamedTuple):
    """A run's line as JSON, the state in it, and the marks of its source files."""

    state: str
    marks: str
    text: str


class SummaryCache:
    """The cached lines.

    Several agents may write the file at once; a line that is lost this way is made again.
    """

    def __init__(self, root: str) -> None:
        """Read the cached lines, without those that cannot be read."""
        self._path = os.path.join(root, "hosts", process.host_id(), "summaries-%s" % FORMAT)
        self._runs = os.path.join(root, "runs")
        self._kept: Dict[str, CachedSummary] = {}
        self._fresh: List[str] = []
        self._stale = 0
        with contextlib.suppress(OSError):
            for line in read_regular(self._path, MAX_BYTES).split(b"\n"):
                text, _, check = line.rpartition(b"\t")
                if check == _check(text):  # otherwise the line is incomplete
                    name, *parts = text.decode().split("\t")
                    self._stale += name in self._kept
                    self._kept[name] = CachedSummary(*parts)

    def line_of(self, run_id: str) -> Optional[CachedSummary]:
        """Return the cached line of a run; None if it is missing or its source files have changed."""
        kept = self._kept.get(run_id)
        if kept is None:
            return None
        folder = "%s/%s/" % (self._runs, run_id)
        try:
            if all(_mark(folder, one.partition("=")[0]) == one for one in kept.marks.split(";")):
                return kept
        except OSError:
            pass
        self._stale += 1
        del self._kept[run_id]
        return None

    def marks_of(self, run: Run) -> Optional[str]:
        """Return the marks of a run's files, to be taken before a read; None if a file changed just now."""
        folder = run.path + "/"
        try:
            last = run.last()
            if last is None:
                return None
            names = [os.path.relpath(path, run.path) for path in (run.plan, run.record, last.state)]
            newest = max(os.lstat(folder + name).st_ctime for name in names)
            return (
                ";".join(_mark(folder, name) for name in names) if time.time() - newest > SETTLED_S else None
            )
        except OSError:
            return None

    def keep(self, run_id: str, kept: CachedSummary) -> None:
        """Keep the line of a run that has ended."""
        self._kept[run_id] = kept
        self._fresh.append(run_id)

    def save(self) -> None:
        """Write the new lines. Lines that the disk refuses are made again next time."""
        is_due = self._stale > max(MAX_STALE, len(self._kept))
        if self._fresh or is_due:
            self._write(list(self._kept) if is_due else self._fresh, anew=is_due)
        self._fresh, self._stale = [], 0 if is_due else self._stale

    def forget_removed(self) -> None:
        """Drop the lines of removed runs."""
        there = set(os.listdir(self._runs)) if os.path.isdir(self._runs) else set()
        if not there.issuperset(self._kept):
            self._kept = {name: kept for name, kept in self._kept.items() if name in there}
            self._write(list(self._kept), anew=True)

    def _write(self, names: List[str], *, anew: bool) -> None:
        lines = [("%s\t%s\t%s\t%s" % (name, *self._kept[name])).encode() for name in names]
        data = b"".join(b"\n%s\t%s" % (line, _check(line)) for line in lines) + b"\n"
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            if anew:
                os.unlink(self._path)
            descriptor = open_regular(self._path, APPENDING, 0o600)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)


def _check(line: bytes) -> bytes:
    return b"%08x" % zlib.crc32(line)


def _mark(folder: str, name: str) -> str:
    status = os.lstat(folder + name)
    return "%s=%d,%d,%d,%d" % (
        name,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
