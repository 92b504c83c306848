"""Text in columns. A rich.Table looks the same and takes a second for a thousand rows."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from itertools import zip_longest

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from launcher.values.text import printable

GAP = "  "
LEAST = 4
"""Cells that a column keeps, however narrow the terminal is."""


def print_columns(titles: Sequence[str], rows: Sequence[Sequence[str]], whole: Collection[int]) -> None:
    """Print rows under titles, as wide as the terminal; where they are wider, all columns but the `whole` ones are wrapped."""
    console = Console(highlight=False)
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(_cells, {title, *column})) for title, *column in zip(titles, *cells, strict=True)]
    _fit(widths, console.width - len(GAP) * (len(widths) - 1), whole)
    console.print(Text(_line(titles, widths), style="dim"), soft_wrap=True)
    lines = [line for row in cells for line in _lines(row, widths)]
    console.out("\n".join(lines), highlight=False)


def _fit(widths: list[int], room: int, whole: Collection[int]) -> None:
    """Narrow the widest columns until all have room."""
    while sum(widths) > room:
        widest = max((number for number in range(len(widths)) if number not in whole), key=widths.__getitem__)
        if widths[widest] <= LEAST:
            return
        widths[widest] -= 1


def _lines(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    if all(_cells(cell) <= width for cell, width in zip(row, widths, strict=True)):
        return [_line(row, widths)]
    wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    return [_line(parts, widths) for parts in zip_longest(*wrapped, fillvalue="")]


def _wrapped(cell: str, width: int) -> list[str]:
    if _cells(cell) <= width:  # an empty column has no width at all
        return [cell]
    parts = textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
    return [
        part if _cells(part) <= width else f"{set_cell_size(part, width - 1).rstrip()}…" for part in parts
    ] or [""]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(_padded(cell, width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _padded(cell: str, width: int) -> str:
    return cell.ljust(width) if cell.isascii() else set_cell_size(cell, width)


def _cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)
