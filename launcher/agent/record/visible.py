"""Text without terminal escapes and control characters, as programs that show or scan a log see it.

Programs differ in the characters that they remove, so a text has several readings. Each reading maps its
characters back to their positions in the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Iterator, List, Tuple

MAX_ESCAPE = 4096
"""The longest escape in characters, e.g. a hyperlink. A longer one without an end counts as text."""
_STRING = r"[^\x07\x1b\x90\x98\x9c-\x9f\n]{0,%d}" % MAX_ESCAPE
_SEQUENCE = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_]%s(?:\x07|\x1b\\|\x9c)" % _STRING
_SEQUENCE_IN_ONE = r"\x9b[0-?]*[ -/]*[@-~]|[\x9d\x90\x98\x9e\x9f]%s(?:\x07|\x1b\\|\x9c)" % _STRING
_ALONE = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
"""Control characters except newline and tab, and those that show nothing or change the writing direction."""
_SHORT = r"\x1b[ -/]*[0-~]?"
_INVISIBLE = re.compile(f"{_SEQUENCE}|{_SEQUENCE_IN_ONE}|{_SHORT}|{_ALONE}")
_INVISIBLE_BUT_SHORT = re.compile(f"{_SEQUENCE}|{_SEQUENCE_IN_ONE}|{_ALONE}")
_OVERSTRUCK = re.compile(rf"{_SEQUENCE}|{_SEQUENCE_IN_ONE}|{_SHORT}|[^\n\x08]\x08|{_ALONE}")
_HAS_SHORT = re.compile(r"\x1b[^\[\]PX^_]")
_OPEN = re.compile(
    r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_]%s\x1b?|[ -/]*)|\x9b[0-?]*[ -/]*|[\x9d\x90\x98\x9e\x9f]%s\x1b?)\Z"
    % (_STRING, _STRING)
)
_PLAIN = bytes(
    byte
    for byte in range(256)
    if byte not in (*range(9), *range(11, 32), 127, 0xC2, 0xD8, 0xE1, 0xE2, 0xEF, 0xF3)
)
"""Bytes that are visible and begin no invisible character."""


def is_plain(data: bytes) -> bool:
    """Whether UTF-8 data is certainly all visible. A quick check: False may be wrong."""
    return not data.translate(None, _PLAIN)


def readings(text: str) -> Iterator[VisibleText]:
    """Yield the readings of a text that has invisible characters; nothing if all of it is visible."""
    first = VisibleText(text, _INVISIBLE)
    if first.text != text:
        yield first
    if _HAS_SHORT.search(text):
        yield VisibleText(text, _INVISIBLE_BUT_SHORT)
    if "\x08" in text:
        yield VisibleText(text, _OVERSTRUCK)


def parted(text: str) -> Tuple[str, str]:
    """Return the visible part of a text and the invisible part."""
    return _INVISIBLE.sub("", text), "".join(_INVISIBLE.findall(text))


def open_escape(text: str) -> int:
    """Return the start of an escape that the next characters may complete; the text's length without one."""
    found = _OPEN.search(text, max(0, len(text) - MAX_ESCAPE))
    return found.start() if found is not None else len(text)


class VisibleText:
    """A text as one reader sees it."""

    def __init__(self, text: str, invisible: re.Pattern[str]) -> None:
        """Remove what `invisible` matches."""
        pieces: List[str] = []
        self._starts: List[int] = []
        self._places: List[int] = []
        size = done = 0
        for found in (*invisible.finditer(text), None):
            begin, end = found.span() if found is not None else (len(text), len(text))
            if begin > done:
                pieces.append(text[done:begin])
                self._starts.append(size)
                self._places.append(done)
                size += begin - done
            done = end
        self.text = "".join(pieces)

    def place(self, index: int) -> int:
        """Return the position in the text of a character of this reading."""
        piece = bisect_right(self._starts, index) - 1
        return self._places[piece] + index - self._starts[piece]
