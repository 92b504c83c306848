"""Safe cells for launcher's tables: no foreign text becomes a formula or contains a terminal's control characters."""

from __future__ import annotations

import functools
import re
from typing import Any

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # noqa: RUF001 - spreadsheets take the wide ones too
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|inf|nan)", re.ASCII)


def cell(value: Any) -> Any:
    """Return a value as a cell. Numbers stay; text that a spreadsheet would compute gets a leading apostrophe."""
    return _text_cell(value) if isinstance(value, str) else value


@functools.lru_cache(maxsize=4096)
def _text_cell(text: str) -> str:
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    is_formula = text.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text
