"""Read tables in a log: a heading with names, then rows with one number per name.

epoch     train_loss  valid_loss  accuracy  time
0         0.345       0.290       0.871     00:12

step,loss
10,0.345
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Tuple

from .log_names import Name, aside_name, column_meaning
from .log_pairs import NUMBER, number
from .log_steps import Count, LinePosition

_CELLS = re.compile(r"\s{2,}|\t|\s{0,8}\|\s{0,8}")
_COMMAS = re.compile(
    r"(?:global_step|step|iter|iteration|epoch)(?:,\s?[A-Za-z][\w/.-]{0,40}){1,40}\s*", re.IGNORECASE
)
_NUMBER = re.compile(NUMBER)
_OF = re.compile(r"(\d{1,9})/\d{1,9}")
_RULE = re.compile(r"[-=+|:\s]{3,}")
_LEAST, _MOST = 3, 40
_MAX_MISFITS = 2
_STEPS = ("step", "global_step", "#", "iter", "iteration", "steps")
_EPOCHS = ("epoch", "e", "epochs")
_FASTAI = ("epoch", "train_loss", "valid_loss")  # later columns are measured on the validation set
_DETECTION = {
    "box(p": "precision",
    "p": "precision",
    "r": "recall",
    "box": "box_loss",
    "obj": "obj_loss",
    "cls": "cls_loss",
}


class Row(NamedTuple):
    """A row of a table: its training position, its numbers, and whether they come from an evaluation."""

    place: LinePosition
    pairs: List[Tuple[Name, float]]
    is_evaluation: bool


class Table:
    """The table at the log's present position, if any."""

    def __init__(self) -> None:
        """Begin outside of a table."""
        self._columns: List[str] = []
        self._misfits = 0
        self._has_commas = False

    @property
    def is_open(self) -> bool:
        """Whether rows may follow."""
        return bool(self._columns)

    def takes_head(self, line: str) -> bool:
        """Open a table if the line is its heading; return whether it is."""
        has_commas = bool(_COMMAS.fullmatch(line))
        if not has_commas and "  " not in line and "\t" not in line and "|" not in line:
            return False
        cells = _cells(line, has_commas=has_commas)
        if not (2 if has_commas else _LEAST) <= len(cells) <= _MOST or any(
            _NUMBER.fullmatch(cell) for cell in cells
        ):
            return False
        columns = [_DETECTION.get(cell.lower(), cell.lower().rstrip(")")) for cell in cells]
        if len(set(columns)) < len(columns) or any(
            len(column) > 40 or ":" in column or "=" in column for column in columns
        ):
            return False
        if not any((name := column_meaning(column)) is not None and name.is_measure for column in columns):
            return False
        if not {*_STEPS, *_EPOCHS, "class"} & set(columns):
            return False
        self._columns, self._misfits, self._has_commas = columns, 0, has_commas
        return True

    def row(self, line: str) -> Optional[Row]:
        """Return the numbers of a row, None for any other line.

        The second line that is not a row ends the table; a row resets that count.
        """
        cells = _cells(line, has_commas=self._has_commas)
        if len(cells) != len(self._columns) or (self._has_commas and not cells[0].isdecimal()):
            if not _RULE.fullmatch(line.strip()):
                self._misfits += 1
            if self._misfits >= _MAX_MISFITS:
                self._columns = []
            return None
        pairs: List[Tuple[Name, float]] = []
        step: Optional[int] = None
        epoch: Optional[int] = None
        is_class = False
        for place, column in enumerate(self._columns):
            cell = cells[place]
            if column == "class":
                is_class = True
                if cell != "all":
                    return None
            elif column in _STEPS:
                step = int(cell) if cell.isdecimal() and len(cell) < 16 else None
            elif column in _EPOCHS:
                epoch = _epoch(cell)
            elif _NUMBER.fullmatch(cell):
                name = column_meaning(column)
                if name is not None:
                    is_fastai = place >= len(_FASTAI) and tuple(self._columns[: len(_FASTAI)]) == _FASTAI
                    pairs.append((_of_evaluation(name) if is_fastai else name, number(cell)))
        if not any(name.is_measure for name, _ in pairs):
            return None
        self._misfits = 0
        count = Count("table", step, None, None, is_global=True) if step is not None else None
        return Row(LinePosition(count, None if epoch is None else float(epoch)), pairs, is_class)


def _of_evaluation(name: Name) -> Name:
    return name._replace(text=aside_name(name.text)) if name.is_measure else name


def _cells(line: str, *, has_commas: bool) -> List[str]:
    if has_commas:
        return [cell.strip() for cell in line.split(",")]
    return _CELLS.split(line.strip().strip("|").strip())


def _epoch(cell: str) -> Optional[int]:
    of = _OF.fullmatch(cell)
    text = of[1] if of else cell
    return int(text) if text.isdecimal() and len(text) < 10 else None
