"""A Jupyter notebook: its code cells as one source, and a changed cell written back with all else byte-identical."""

from __future__ import annotations

import bisect
import json
import re
from typing import Any, NamedTuple

from launcher.base import untrusted_json
from launcher.check.reading.json_spans import Span, elements, members
from launcher.check.reading.module import parse
from launcher.check.reading.positions import LINE_END, Lines, Region
from launcher.check.reading.unchecked import UncheckedError

SUFFIX = ".ipynb"
MAX_NOTEBOOK_BYTES = 50_000_000
"""A notebook may hold pictures."""
MAX_CODE_BYTES = 1_000_000
_PYTHON_CELLS = ("%%capture", "%%debug", "%%prun", "%%time", "%%timeit", "%%python", "%%python3")
"""Cell magics whose cell is Python that runs in the notebook's process, or is at least like it."""
_MAGIC = re.compile(r"[%!?]|.*=\s*[%!]|.*\?\??\s*(#.*)?$", re.DOTALL)
"""A line of IPython that Python refuses: `%time`, `!pip`, `?name`, `x = !ls`, `name?`."""
_PREFIXES = ("%", "!", "?")
_MAX_MAGICS = 100
_BOM = "\ufeff"


class Cell(NamedTuple):
    """A code cell: its number among all cells, from 1, its own text, and the same number of lines of Python.

    `neutral` has the lines, from 0, that differ between the two.
    """

    number: int
    text: str
    python: str
    neutral: frozenset[int] = frozenset()
    mistake: UncheckedError | None = None


class Notebook:
    """The code cells of a notebook, and `text`, their Python in one source."""

    def __init__(self, data: bytes, cells: list[Cell]) -> None:
        self._data = data
        self.cells = cells
        pieces = [_ended(cell.python).encode() for cell in cells]
        self.text = b"".join(pieces)
        self._lines = Lines(self.text)
        self._starts = [0]
        for piece in pieces:
            self._starts.append(self._starts[-1] + len(LINE_END.findall(piece)))

    def place(self, region: Region) -> Region:
        """Return a part of `text` as the part of its cell."""
        cell, start = self._cell_of(region.line - 1)
        end_line = max(region.line, min(region.end_line, self._starts[cell + 1]))
        return Region(
            region.line - start, region.column, end_line - start, region.end_column, self.cells[cell].number
        )

    def _cell_of(self, line: int) -> tuple[int, int]:
        """Return the index of the cell with a line of `text`, and the first line of the cell."""
        index = max(0, min(bisect.bisect_right(self._starts, line) - 1, len(self.cells) - 1))
        return index, self._starts[index]

    def can_change(self, start: int, end: int) -> bool:
        """Whether bytes of `text` lie in the Python of one cell, so that they can be replaced."""
        first, last = self._lines.index(start), self._lines.index(end)
        if end > start and self._lines.offset(last) == end:
            last -= 1  # up to the end of the line before
        (cell, begin), (other, _) = self._cell_of(first), self._cell_of(last)
        return cell == other and not any(
            line - begin in self.cells[cell].neutral for line in range(first, last + 1)
        )

    def with_edits(self, edits: list[tuple[int, int, bytes]]) -> bytes:
        """Return the notebook's bytes after edits of `text`, each a start, an end and the new bytes, in order.

        Raises ValueError if the notebook cannot be written.
        """
        sources: dict[int, str] = {}
        by_cell: dict[int, list[tuple[int, int, bytes]]] = {}
        for start, end, new in edits:
            number, _ = self._cell_of(self._lines.index(start))
            by_cell.setdefault(number, []).append((start, end, new))
        for index, several in by_cell.items():
            cell = self.cells[index]
            sources[cell.number] = _edited(cell, self._lines, self._starts[index], several)
        return _with_sources(self._data, sources)


def _edited(cell: Cell, lines: Lines, first: int, edits: list[tuple[int, int, bytes]]) -> str:
    """Return a cell's own text after edits of the joined text. The cell begins with the line `first` of that."""
    own = cell.text.encode()
    own_lines = Lines(own)

    def in_cell(offset: int) -> int:
        index = lines.index(offset)
        return min(len(own), own_lines.offset(index - first) + offset - lines.offset(index))

    pieces, done = [], 0
    for start, end, new in edits:
        pieces += [own[done : in_cell(start)], new]
        done = in_cell(end)
    text = b"".join([*pieces, own[done:]]).decode()
    return text if cell.text.endswith("\n") else text.removesuffix("\n")


def read_notebook(data: bytes) -> Notebook:
    """Return the code cells of a notebook; no cells if its language is not Python.

    Raises UncheckedError for a file that is not a notebook, or has a form that cannot be read.
    """
    try:
        found = untrusted_json.decode(data.decode("utf-8-sig"))
    except ValueError as error:
        raise _not_json(error) from error
    if not isinstance(found, dict) or not isinstance(found.get("cells"), list):
        is_old = isinstance(found, dict) and "worksheets" in found
        raise UncheckedError(
            "is a notebook of an old form: open and save it in Jupyter first"
            if is_old
            else "is not a notebook: it has no cells"
        )
    cells = []
    if _is_python(found.get("metadata")):
        cells = [_cell(number, one) for number, one in enumerate(found["cells"], 1) if _is_code(one)]
    if sum(len(cell.text) for cell in cells) > MAX_CODE_BYTES:
        raise UncheckedError("has more than 1 MB of code: not checked")
    return Notebook(data, cells)


def _not_json(error: ValueError) -> UncheckedError:
    if isinstance(error, json.JSONDecodeError):
        return UncheckedError(
            f"is not a notebook: no JSON: {error.msg}", Region.at(error.lineno, error.colno)
        )
    why = "is not UTF-8" if isinstance(error, UnicodeError) else str(error)
    return UncheckedError(f"is not a notebook: {why}")


def _is_python(metadata: Any) -> bool:
    """Whether a notebook's language is Python, or not named."""
    named = []
    if isinstance(metadata, dict):
        for key, name in (("language_info", "name"), ("kernelspec", "language")):
            table = metadata.get(key)
            named += [table[name]] if isinstance(table, dict) and isinstance(table.get(name), str) else []
    return not named or any(one.lower() in ("python", "ipython") for one in named)


def _is_code(cell: Any) -> bool:
    return isinstance(cell, dict) and cell.get("cell_type") == "code" and _source(cell) is not None


def _source(cell: dict[str, Any]) -> str | None:
    found = cell.get("source")
    if isinstance(found, list) and all(isinstance(line, str) for line in found):
        return "".join(found)
    return found if isinstance(found, str) else None


def _cell(number: int, cell: dict[str, Any]) -> Cell:
    """Return a cell, with IPython's lines replaced by lines that Python takes."""
    source = _source(cell) or ""
    text = source.encode(errors="replace").decode()  # half a character, as "\ud800" in JSON
    lines = _split(text)
    neutral = set() if text == source else {*range(len(lines))}
    first = lines[0].strip() if lines else ""
    if first.startswith("%%"):
        is_python = first.split()[0] in _PYTHON_CELLS
        neutral |= {0} if is_python else {*range(len(lines))}
        lines = [_blank(line) if index in neutral else line for index, line in enumerate(lines)]
    mistake = None
    for _ in range(_MAX_MAGICS):
        mistake = _mistake("".join(lines))
        index = _magic_before(lines, mistake.region.line - 1) if mistake is not None else None
        if index is None:
            break
        replaced = _magic_lines(lines, index)
        neutral |= replaced
        lines[index] = _neutral(lines[index])
        lines = [
            _blank(line) if place in replaced and place != index else line for place, line in enumerate(lines)
        ]
    if mistake is not None:
        neutral, lines = {*range(len(lines))}, [_blank(line) for line in lines]
    return Cell(number, text, "".join(lines), frozenset(neutral), mistake)


def _magic_before(lines: list[str], index: int) -> int | None:
    """Return the line of IPython that explains a mistake in a line; None if the line is simply wrong."""
    if index < len(lines) and _MAGIC.match(lines[index].strip()):
        return index
    before = (
        one for one in range(min(index, len(lines)) - 1, -1, -1) if lines[one].lstrip()[:1] in _PREFIXES
    )
    return next(before, None)


def _magic_lines(lines: list[str], index: int) -> set[int]:
    """Return a line and those that continue it by a backslash."""
    found = {index}
    while lines[index].rstrip("\r\n").endswith("\\") and index + 1 < len(lines):
        index += 1
        found.add(index)
    return found


def _mistake(text: str) -> UncheckedError | None:
    """Return the mistake of a cell that is not Python."""
    if "\0" in text:
        return UncheckedError("is not a text: it has a null byte")
    try:
        parse(text)
    except SyntaxError as error:
        return UncheckedError(
            f"syntax error: {error.msg}", Region.at(error.lineno or 1, max(1, error.offset or 1))
        )
    except (RecursionError, MemoryError, ValueError):
        return UncheckedError("is nested too deeply: not checked")
    return None


def _split(text: str) -> list[str]:
    """Return the lines of a text with their ends, as Python counts them."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)


def _line_end(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


def _blank(line: str) -> str:
    return _line_end(line)


def _neutral(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())] if line.strip() else ""
    return f"{indent}pass{_line_end(line)}"


def _ended(text: str) -> str:
    return text if not text or text.endswith(("\n", "\r")) else f"{text}\n"


# writing


def _with_sources(data: bytes, sources: dict[int, str]) -> bytes:
    """Return a notebook's bytes with other sources of some cells, by number; all else stays as it is.

    Raises ValueError if the file cannot be written so.
    """
    text = data.decode()
    is_ascii = text.isascii()
    begin = len(_BOM) if text.startswith(_BOM) else 0
    begin += len(text[begin:]) - len(text[begin:].lstrip(" \t\r\n"))
    cells = [span for key, span in members(text, begin) if key == "cells"][-1]
    pieces, done = [], 0
    for number, (start, _) in enumerate(elements(text, cells[0]), 1):
        if number in sources:
            where = [span for key, span in members(text, start) if key == "source"][-1]
            pieces += [text[done : where[0]], _written(text, where, sources[number], is_ascii=is_ascii)]
            done = where[1]
    new = "".join([*pieces, text[done:]])
    found = untrusted_json.decode(new.removeprefix(_BOM))["cells"]
    if any(_source(found[number - 1]) != source for number, source in sources.items()):
        raise ValueError("the notebook does not read back as it was written")
    return new.encode()


def _written(text: str, span: Span, source: str, *, is_ascii: bool) -> str:
    """Return a cell's source as JSON in the form of the old one, at `span`; lines that stay keep their bytes."""
    start, end = span
    if text[start] != "[":
        return json.dumps(source, ensure_ascii=is_ascii)
    spans = [*elements(text, start)]
    before = text[start + 1 : spans[0][0]] if spans else ""
    between = text[spans[0][1] : spans[1][0]] if len(spans) > 1 else f",{before}"
    after = text[spans[-1][1] : end - 1] if spans else ""
    old = [text[slice(*one)] for one in spans]
    first, last, middle = _changed_part([json.JSONDecoder().decode(one) for one in old], source)
    new = [json.dumps(line, ensure_ascii=is_ascii) for line in _split(middle)]
    return f"[{before}{between.join([*old[:first], *new, *old[last:]])}{after}]"


def _changed_part(old: list[str], source: str) -> tuple[int, int, str]:
    """Return the pieces of an old source that a new one replaces, as the first and the one after the last, and by what."""
    first, last = 0, len(old)
    while first < last and old[first].endswith("\n") and source.startswith(old[first]):
        source = source.removeprefix(old[first])
        first += 1
    while last > first and old[last - 1] and source.endswith(old[last - 1]):
        rest = source.removesuffix(old[last - 1])
        if rest and not rest.endswith("\n"):
            break
        source, last = rest, last - 1
    return first, last, source
