"""Text in columns that fit the terminal. A rich.Table looks the same and takes a second for a thousand rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from launcher.values.text import printable

GAP = "  "


class Column(NamedTuple):
    """A column: its title, and what becomes of it in a narrow terminal.

    `least` is the number of cells that are kept when its text is cut; `None` if it is never cut. Where cutting does not
    suffice, columns are left out, the one with the highest `drop` first. One with 0 always stays.
    """

    title: str
    least: int | None = None
    drop: int = 0
    is_figure: bool = False


def print_columns(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under titles: a line each, cut to the width of the terminal. What is not a terminal gets all of the text."""
    console = Console(highlight=False)
    head, *lines = column_lines(columns, rows, console.width if console.is_terminal else None)
    console.print(Text(head, style="" if console.no_color else "dim"), soft_wrap=True)
    if lines:
        console.out("\n".join(lines), highlight=False)


def column_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None
) -> list[str]:
    """Return the line of titles and a line for each row, at most `width` cells long if one is given."""
    titles = [column.title for column in columns]
    cells = [titles, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(_cells, column)) for column in zip(*cells, strict=True)]
    kept = list(range(len(columns)))
    while width is not None and not _fit(columns, widths, kept, width):
        last = max(kept, key=lambda number: columns[number].drop)
        if columns[last].drop == 0:
            break
        kept.remove(last)
    lines = [
        GAP.join(_padded(row[n], widths[n], is_right=columns[n].is_figure) for n in kept).rstrip()
        for row in cells
    ]
    return lines if width is None else [_cut(line, width) for line in lines]


def _fit(columns: Sequence[Column], widths: list[int], kept: Sequence[int], width: int) -> bool:
    """Narrow the widest of the `kept` columns until all fit. Return False, and change nothing, if they cannot."""
    room = width - len(GAP) * (len(kept) - 1)
    for limit in range(room, -1, -1):
        narrowed = {number: _narrowed(columns[number], widths[number], limit) for number in kept}
        if (spare := room - sum(narrowed.values())) < 0:
            continue
        for number in reversed(kept):
            more = min(spare, widths[number] - narrowed[number])
            widths[number] = narrowed[number] + more
            spare -= more
        return True
    return False


def _narrowed(column: Column, width: int, limit: int) -> int:
    return width if column.least is None else min(width, max(limit, column.least))


def _padded(cell: str, width: int, *, is_right: bool) -> str:
    cell = _cut(cell, width)
    space = " " * (width - _cells(cell))
    return space + cell if is_right else cell + space


def _cut(text: str, width: int) -> str:
    """Cut a text to a number of cells, with an ellipsis where something is missing."""
    if _cells(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1).rstrip()}…" if width > 0 else ""


def _cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)
