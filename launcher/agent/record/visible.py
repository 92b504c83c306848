"""Text as a reader sees it: without terminal escapes and control characters, as programs that show or scan a log remove them.

There are several readings, because programs differ in what they remove. Each keeps the place in the text of what is left.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Iterator, List, Tuple

MOST_ESCAPE = 4096
"""Characters of an escape, as of a link. What is longer and has no end is text."""
_STRING = r"[^\x07\x1b\x90\x98\x9c-\x9f\n]{0,%d}" % MOST_ESCAPE
_SEQUENCE = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_]%s(?:\x07|\x1b\\|\x9c)" % _STRING
_SEQUENCE_IN_ONE = r"\x9b[0-?]*[ -/]*[@-~]|[\x9d\x90\x98\x9e\x9f]%s(?:\x07|\x1b\\|\x9c)" % _STRING
_ALONE = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
"""Control characters but newline and tab, and those that show nothing or change the direction of writing."""
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
"""Bytes of which none is invisible, or begins a character that is."""


def is_plain(data: bytes) -> bool:
    """Whether all of some UTF-8 is surely visible: a quick check."""
    return not data.translate(None, _PLAIN)


def readings(text: str) -> Iterator[VisibleText]:
    """Yield the readings of a text in which something is not visible; none if that is nothing."""
    first = VisibleText(text, _INVISIBLE)
    if first.text != text:
        yield first
    if _HAS_SHORT.search(text):
        yield VisibleText(text, _INVISIBLE_BUT_SHORT)
    if "\x08" in text:
        yield VisibleText(text, _OVERSTRUCK)


def parted(text: str) -> Tuple[str, str]:
    """Return what is visible of a text, and what is not."""
    return _INVISIBLE.sub("", text), "".join(_INVISIBLE.findall(text))


def open_escape(text: str) -> int:
    """Return where the escape begins that the next characters may complete; the text's length if it ends with none."""
    found = _OPEN.search(text, max(0, len(text) - MOST_ESCAPE))
    return found.start() if found is not None else len(text)


class VisibleText:
    """What one reader sees of a text."""

    def __init__(self, text: str, invisible: re.Pattern[str]) -> None:
        """Leave out what is invisible to that reader."""
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
        """Return where a character of the reading stands in the text."""
        piece = bisect_right(self._starts, index) - 1
        return self._places[piece] + index - self._starts[piece]
