"""A cache of the rows of ended runs in `launch ps`, so that a list of thousands need not read several files of each run.

A row is valid while two folders of the run are unchanged: that of the local copy, and that of the index entry.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import NamedTuple

from pydantic import ConfigDict, TypeAdapter

from launcher import __version__
from launcher.base.whole_file import write_whole
from launcher.copy import index
from launcher.copy.local_copy import LocalCopy
from launcher.values.record import Summary

SETTLED_S = 60.0
"""Rows of folders that changed within this many seconds are not cached: a coarse clock may show two changes as one."""
_FORM = f'["{__version__}",5]'.encode()


class EndedRow(NamedTuple):
    """An ended run: the times of its two folders in ns, its local copy's folder, its sort key, host and summary."""

    entered: int
    changed: int
    folder: str
    order: int
    launched: float
    host: str
    summary: Summary
    batch: str | None = None

    @property
    def place(self) -> tuple[int, float, str]:
        """The sort key among this user's runs, equal to an entry's `place_in_order`."""
        return (self.order, self.launched, self.summary.run)


_ROWS = TypeAdapter(list[EndedRow], config=ConfigDict(defer_build=True))
_ROW = TypeAdapter(EndedRow, config=ConfigDict(defer_build=True))


class EndedRows:
    """The valid rows of the cache."""

    def __init__(self) -> None:
        """Read the cache."""
        from platformdirs.unix import Unix

        self._path = Unix("launch").user_cache_path / "ended.jsonl"
        self.runs = index.runs()
        """All runs of the index, each with the modification time of its folder in the index, in ns."""
        self._copies: dict[str, dict[str, int]] = {}
        self._lines: dict[str, bytes] = {}
        self._is_new = False
        self.rows: dict[str, EndedRow] = {}
        for line, row in self._read():
            run = row.summary.run
            if self.runs.get(run) == row.entered and self._changed(row.folder, run) == row.changed:
                self.rows[run] = row
                self._lines[run] = line
            else:
                self._is_new = True

    def _read(self) -> list[tuple[bytes, EndedRow]]:
        try:
            form, *lines = self._path.read_bytes().splitlines()
            rows = _ROWS.validate_json(b"[%s]" % b",".join(lines)) if form == _FORM else []
        except (OSError, ValueError):  # missing or damaged: it is made again
            return []
        return list(zip(lines, rows, strict=False))

    def keep(self, local_copy: LocalCopy, entry: index.IndexEntry, host: str, summary: Summary) -> None:
        """Keep a row, unless one of its folders has changed recently."""
        folder = str(local_copy.folder.parent)
        entered, changed = self.runs.get(local_copy.run, 0), self._changed(folder, local_copy.run)
        if entered and changed and time.time() - max(entered, changed) / 1e9 > SETTLED_S:
            row = EndedRow(entered, changed, folder, entry.order, entry.launched, host, summary, entry.batch)
            self._lines[local_copy.run] = _ROW.dump_json(row, exclude_defaults=True)
            self._is_new = True

    def save(self) -> None:
        """Write the cache if it has changed.

        A failed write is ignored; the rows are read from the local copies again.
        """
        if self._is_new:
            with contextlib.suppress(OSError):
                write_whole(self._path, b"".join(b"%s\n" % line for line in (_FORM, *self._lines.values())))

    def _changed(self, folder: str, run: str) -> int:
        """Return the modification time of a local copy's folder in ns; 0 if it is missing."""
        if folder not in self._copies:
            self._copies[folder] = _times(folder)
        return self._copies[folder].get(run, 0)


def _times(folder: str) -> dict[str, int]:
    """Return the modification time of each folder inside a folder, in ns."""
    try:
        with os.scandir(folder) as entries:
            return {
                entry.name: entry.stat(follow_symlinks=False).st_mtime_ns
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
            }
    except OSError:
        return {}
