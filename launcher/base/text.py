"""Text from other machines, made safe to show."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_CHARACTERS = 2000
_OBEYED = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def printable(text: str) -> str:
    """Return text that a terminal can show: control characters, including escapes, become spaces.

    Long text is cut.
    """
    if text.isprintable():
        return text[:MAX_CHARACTERS]
    return "".join(char if char.isprintable() else " " for char in text)[:MAX_CHARACTERS]


def is_obeyed(name: str) -> bool:
    """Whether a name contains characters that control a terminal: escapes, line breaks, writing direction."""
    return _OBEYED.search(name) is not None


def printables(texts: Sequence[str]) -> Sequence[str]:
    """Return texts that a terminal can show. Short and plain texts are checked all at once, which is fast."""
    is_plain = "".join(texts).isprintable() and max(map(len, texts), default=0) <= MAX_CHARACTERS
    return texts if is_plain else [printable(text) for text in texts]


def hours_text(hours: float) -> str:
    """Return hours in a suitable unit: 8.5 h, 6 min, 14.4 s."""
    if hours >= 0.5:
        return f"{hours:g} h"
    seconds = hours * 3600
    return f"{seconds / 60:.3g} min" if seconds >= 120 else f"{seconds:.3g} s"


def files_text(count: int) -> str:
    """Return a number of files in words: 1 file, 3 files."""
    return f"{count} file" if count == 1 else f"{count:,} files"


def first_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first of some names, and the number of the others: a, b, c and 4 more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
