"""Where the values of a JSON text stand in it, so that one can be replaced and all else kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_BLANKS = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()

Span = tuple[int, int]


def members(text: str, start: int) -> Iterator[tuple[str, Span]]:
    """Yield the keys of an object that begins at `start`, each with the span of its value. The text must be valid JSON."""
    place = _after_blanks(text, start + 1)
    while text[place] == '"':
        key, end = _DECODER.raw_decode(text, place)
        begin = _after_blanks(text, _after_blanks(text, end) + 1)
        _, end = _DECODER.raw_decode(text, begin)
        yield key, (begin, end)
        place = _next(text, end)


def elements(text: str, start: int) -> Iterator[Span]:
    """Yield the spans of the elements of a list that begins at `start`. The text must be valid JSON."""
    place = _after_blanks(text, start + 1)
    while text[place] != "]":
        _, end = _DECODER.raw_decode(text, place)
        yield place, end
        place = _next(text, end)


def _next(text: str, end: int) -> int:
    """Return the place of the next element, or of the closing bracket."""
    place = _after_blanks(text, end)
    return _after_blanks(text, place + 1) if text[place] == "," else place


def _after_blanks(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return place if found is None else found.end()
