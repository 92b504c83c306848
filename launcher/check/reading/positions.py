"""Places in a source for people and editors: lines and columns, counted in characters from 1."""

from __future__ import annotations

import bisect
import re
from typing import NamedTuple

LINE_END = re.compile(rb"\r\n|\r|\n")
"""The line ends of Python. `splitlines` has more, such as the form feed."""
BOM = b"\xef\xbb\xbf"


class Region(NamedTuple):
    """A part of a file. `cell` is the number of a notebook's cell, from 1; the lines are then those of the cell."""

    line: int
    column: int
    end_line: int
    end_column: int
    cell: int | None = None

    @classmethod
    def at(cls, line: int, column: int, cell: int | None = None) -> Region:
        """Return an empty part, at one place."""
        return cls(line, column, line, column, cell)

    @property
    def start_text(self) -> str:
        """The first place for people: `12:5`, in a notebook `cell 3:12:5`."""
        place = f"{self.line}:{self.column}"
        return place if self.cell is None else f"cell {self.cell}:{place}"


class Lines:
    """The lines of a source in UTF-8."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._starts = [0, *(match.end() for match in LINE_END.finditer(source))]

    @property
    def count(self) -> int:
        """The number of lines. A line end at the end of the source begins another, empty line."""
        return len(self._starts)

    def offset(self, index: int) -> int:
        """Return the first byte of a line, counted from 0; after the last line, the end of the source."""
        return self._starts[index] if index < len(self._starts) else len(self._source)

    def index(self, offset: int) -> int:
        """Return the line of a byte, counted from 0."""
        return bisect.bisect_right(self._starts, offset) - 1

    def position(self, offset: int) -> tuple[int, int]:
        """Return the line and the column of a byte."""
        offset = max(0, min(offset, len(self._source)))
        index = self.index(offset)
        before = self._source[self._starts[index] : offset]
        if index == 0:
            before = before.removeprefix(BOM)
        return index + 1, len(before.decode(errors="replace")) + 1

    def region(self, start: int, end: int) -> Region:
        """Return the part between two bytes."""
        return Region(*self.position(start), *self.position(end))
