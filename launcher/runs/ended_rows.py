"""What `launch ps` shows of runs that have ended, kept in one file: to list thousands, several files of each were read.

A row counts while its mirror's folder is as it was: all that changes a mirror changes the time of its folder.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from pydantic import ConfigDict, TypeAdapter

from launcher import __version__
from launcher.runs.whole_file import write_whole
from launcher.values.record import Summary

NAME = ".ended.jsonl"
SETTLED_S = 60.0
"""The row of a folder that has changed since is not kept: a file system's clock may show two changes as one."""
_FORM = f'["{__version__}",3]'.encode()


class EndedRow(NamedTuple):
    """A run that has ended: the time of its folder in ns, its place in the order of runs, its host, its summary."""

    changed: int
    order: int
    launched: float
    host: str
    summary: Summary

    @property
    def place(self) -> tuple[int, float, str]:
        """Return what orders it among the runs of this client, as a mirror's `place_in_order`."""
        return (self.order, self.launched, self.summary.run)


_ROWS = TypeAdapter(list[EndedRow], config=ConfigDict(defer_build=True))
_ROW = TypeAdapter(EndedRow, config=ConfigDict(defer_build=True))


class EndedRows:
    """The rows in the file of a folder of mirrors, those that still count."""

    def __init__(self, folder: Path) -> None:
        """Read them."""
        self._path = folder / NAME
        self._changed = _changed(folder)
        self._lines: dict[str, bytes] = {}
        self._is_new = False
        self.rows: dict[str, EndedRow] = {}
        for line, row in self._read():
            run = row.summary.run
            if self._changed.get(run) == row.changed:
                self.rows[run] = row
                self._lines[run] = line
            else:
                self._is_new = True

    def _read(self) -> list[tuple[bytes, EndedRow]]:
        try:
            form, *lines = self._path.read_bytes().splitlines()
            rows = _ROWS.validate_json(b"[%s]" % b",".join(lines)) if form == _FORM else []
        except (OSError, ValueError):  # not there, or damaged: it is made anew
            return []
        return list(zip(lines, rows, strict=False))

    def keep(self, place: tuple[int, float, str], host: str, summary: Summary) -> None:
        """Keep a row from now on, unless its folder has changed lately."""
        changed = self._changed.get(summary.run, 0)
        if changed and time.time() - changed / 1e9 > SETTLED_S:
            row = EndedRow(changed, place[0], place[1], host, summary)
            self._lines[summary.run] = _ROW.dump_json(row, exclude_defaults=True)
            self._is_new = True

    def save(self) -> None:
        """Write what is new. What the disk refuses is read from the mirrors again."""
        if self._is_new:
            with contextlib.suppress(OSError):
                write_whole(self._path, b"".join(b"%s\n" % line for line in (_FORM, *self._lines.values())))


def _changed(folder: Path) -> dict[str, int]:
    """Return the time of each folder in it, in ns."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_mtime_ns for entry in entries if entry.is_dir()}
    except OSError:
        return {}
