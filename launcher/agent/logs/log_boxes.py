"""Read boxed tables in a log: one name and one number a row, in sections.

------------------------------------      ┌─────────────────┬──────────────┐
| rollout/              |          |      │ Validate metric │ DataLoader 0 │
|    ep_rew_mean        | 22.1     |      ├─────────────────┼──────────────┤
| time/                 |          |      │       acc       │     0.5      │
|    total_timesteps    | 4096     |      └─────────────────┴──────────────┘
------------------------------------
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple

_EDGE = re.compile("[|\u2502\u2503\u2551]")
EDGES = tuple(edge.encode() for edge in "|\u2502\u2503\u2551")
_NAME = re.compile(r"[A-Za-z][\w /.@-]{0,80}")
_GRID = ("+", "\u251c", "\u2523", "\u2521", "\u2520", "\u255e")  # a rule between two rows
_HEAD = re.compile(r"(?:validate|test) metric", re.IGNORECASE)  # Lightning's
_MAX_ROWS = 400


class BoxRow(NamedTuple):
    """The value of a row, as written, and its line."""

    value: str
    line: str


class Box(NamedTuple):
    """The rows of a table by section and name. `is_evaluation`: the table's heading says so."""

    rows: Dict[str, BoxRow]
    is_evaluation: bool


class BoxReader:
    """The boxed table at the log's present position, if any."""

    def __init__(self) -> None:
        """Begin outside of a table."""
        self.is_open = False
        self._rows: Dict[str, BoxRow] = {}
        self._section = ""
        self._is_evaluation = False

    def takes(self, line: str) -> bool:
        """Take a row, or a rule between two rows; return whether the line is one."""
        if self.is_open and line.startswith(_GRID):
            return True
        cells = [cell.strip() for cell in _EDGE.split(line.strip())]
        if len(cells) != 4 or cells[0] or cells[3] or not _NAME.fullmatch(cells[1]):
            return False
        self.is_open = True
        if _HEAD.fullmatch(cells[1]):
            self._is_evaluation = True
        elif cells[1].endswith("/") and not cells[2]:
            self._section = cells[1]
        elif len(self._rows) < _MAX_ROWS and not cells[1].endswith("..."):  # a name that was cut
            self._rows[self._section + cells[1]] = BoxRow(cells[2], line)
        return True

    def close(self) -> Box:
        """End the table, and return it."""
        box = Box(self._rows, self._is_evaluation)
        self._rows, self._section, self._is_evaluation, self.is_open = {}, "", False, False
        return box
