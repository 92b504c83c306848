"""Text in columns that fit the terminal. A rich.Table looks the same, but takes a second for a thousand rows.

rich is imported where it is needed: ASCII text in a pipe does not need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from launcher.base.text import printables
from launcher.cli.output import streams
from launcher.cli.output.say import say
from launcher.cli.output.wrapping import cells as cells_of
from launcher.cli.output.wrapping import terminal_width, wrapped

GAP = "  "
INDENT = "      "


class Column(NamedTuple):
    """A column: its title, and its behaviour in a narrow terminal.

    `least` is the number of cells to which its text may be cut; `None` if it is never cut. If cutting is not enough,
    columns are left out, the one with the highest `drop` first. A column with `drop` 0 is never left out.

    Text that `wraps` continues on the next line of its column. If fewer than `least` cells are left, the text moves
    below the row.
    """

    title: str
    least: int | None = None
    drop: int = 0
    is_figure: bool = False
    wraps: bool = False


class Layout(NamedTuple):
    """A table as lines, the titles first, and the titles of the omitted columns."""

    lines: list[str]
    left_out: list[str]


def print_columns(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Print rows under titles, in the width of the terminal. Return the titles of the omitted columns.

    A pipe or file gets the complete text, one line for each row.
    """
    (head, *lines), left_out = lay_out(columns, rows, terminal_width())
    if head:
        _print_head(head)
    if lines:
        say(*lines)
    return left_out


def _print_head(head: str) -> None:
    """Print the titles, dim if colours are on."""
    if not streams.may_have_colours():
        say(head)
        return
    from rich.text import Text

    console = streams.console()
    console.print(Text(head, style="" if console.no_color else "dim"), soft_wrap=True)


def lay_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None) -> Layout:
    """Return the titles and rows as lines, at most `width` cells long if a width is given."""
    titles = [column.title for column in columns]
    cells = [printables(column) for column in zip(titles, *rows, strict=True)]
    widths = list(map(_widest, cells))
    kept = list(range(len(columns)))
    while width is not None and not _fit(columns, widths, kept, width):
        last = max(kept, key=lambda number: (columns[number].drop, columns[number].wraps))
        if columns[last].drop == 0 and not columns[last].wraps:
            break
        kept.remove(last)
    below = [n for n, column in enumerate(columns) if column.wraps and n not in kept and not column.drop]
    lines: list[str] = []
    if below or any(columns[n].wraps for n in kept):
        for number, row in enumerate(zip(*cells, strict=True)):
            lines += _row_lines([(columns[n], row[n], widths[n]) for n in kept])
            texts = [row[n] for n in below] if number else []
            lines += [f"{INDENT}{text}" for text in _wrapped(texts, (width or 0) - len(INDENT))]
    else:
        padded = [_padded_column(columns[n], cells[n], widths[n]) for n in kept]
        lines = [GAP.join(row).rstrip() for row in zip(*padded, strict=True)]
    left_out = [column.title for n, column in enumerate(columns) if n not in kept and n not in below]
    return Layout(lines if width is None else [_cut(line, width) for line in lines], left_out)


def _fit(columns: Sequence[Column], widths: list[int], kept: Sequence[int], width: int) -> bool:
    """Narrow the widest of the `kept` columns until all fit. If they cannot, return False and leave `widths` unchanged."""
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


def _row_lines(cells: Sequence[tuple[Column, str, int]]) -> Iterator[str]:
    """Yield the lines of a row: several if a text wraps."""
    parts = [wrapped(text, width) if column.wraps else [_cut(text, width)] for column, text, width in cells]
    for line in zip_longest(*parts, fillvalue=""):
        padded = [_padded(text, cell[2], cell[0]) for text, cell in zip(line, cells, strict=True)]
        yield GAP.join(padded).rstrip()


def _wrapped(texts: Sequence[str], width: int) -> Iterator[str]:
    for text in texts:
        yield from wrapped(text, width)


def _padded_column(column: Column, texts: Sequence[str], width: int) -> list[str]:
    """Return a column's cells, each padded or cut to `width`. ASCII texts that fit take a short path."""
    if "".join(texts).isascii() and max(map(len, texts)) <= width:
        pad = str.rjust if column.is_figure else str.ljust
        return [pad(text, width) for text in texts]
    return [_padded(_cut(text, width), width, column) for text in texts]


def _padded(text: str, width: int, column: Column) -> str:
    space = " " * (width - cells_of(text))
    return space + text if column.is_figure else text + space


def _cut(text: str, width: int) -> str:
    """Cut a text to a number of cells, with an ellipsis at the end if it was longer."""
    if cells_of(text) <= width:
        return text
    if width <= 0:
        return ""
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, width - 1).rstrip()}…"


def _widest(texts: Sequence[str]) -> int:
    """Return the width of the widest text in cells; for ASCII, its length."""
    return max(map(len if "".join(texts).isascii() else cells_of, texts))
