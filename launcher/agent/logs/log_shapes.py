"""Read the form of a line once for all lines that differ from it only in the digits of their numbers.

A log repeats a few lines with other numbers. The *form* of a line has the positions of its names and numbers,
and the meanings of the names; reading it takes many searches. The *shape* of a line is its text with each
digit of its numbers replaced by 0. Lines of one shape share a form, so a line costs one look-up.

    iter 812: loss 2.3012, time 101.50ms   shape   iter 000: loss 0.0000, time 000.00ms
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Generic, Optional, Tuple, TypeVar, Union

MAX_CHARS = 1000
MAX_SHAPES = 500

_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_NINES = bytes.maketrans(b"012345678", b"999999999")
_WORD = re.compile(rb"[A-Za-z_\x80-\xff][\w/.@\x80-\xff-]*")  # acc5 and acc1 are two names

Form = TypeVar("Form")
Key = Union[bytes, Tuple[bytes, ...]]


class Shapes(Generic[Form]):
    """The forms of the last MAX_SHAPES shapes. Lines longer than MAX_CHARS are read each time.

    A shape is learned when it occurs for the second time. Its form is read with zeros for digits, and with
    nines. If the two differ, e.g. because a number is part of a name, each line of that shape is read
    separately.
    """

    def __init__(self, read: Callable[[str], Form]) -> None:
        """Begin without a shape; `read` finds the form of a line."""
        self._read = read
        self._words: Dict[bytes, Tuple[slice, ...]] = {}
        self._forms: Dict[Key, Optional[Form]] = {}

    def form(self, text: str) -> Form:
        """Return the form of a line."""
        if len(text) > MAX_CHARS:
            return self._read(text)
        data = text.encode()
        blind = data.translate(_ZEROS)
        words = self._words.get(blind)
        if words is None:
            self._note(blind)
            return self._read(text)
        key: Key = (blind, *[data[word] for word in words]) if words else blind
        form = self._forms.get(key)
        if form is not None:
            return form
        if key not in self._forms:
            self._learn(key, data, words)
            form = self._forms[key]
        return self._read(text) if form is None else form

    def _note(self, blind: bytes) -> None:
        """Record a new shape, and the positions of its words with digits."""
        _make_room(self._words)
        found = _WORD.finditer(blind)
        self._words[blind] = tuple(slice(*word.span()) for word in found if b"0" in word[0])

    def _learn(self, key: Key, data: bytes, words: Tuple[slice, ...]) -> None:
        """Keep the form of a shape, or None if it depends on digits that the shape does not keep."""
        _make_room(self._forms)
        zeros, nines = (self._read(_without(data, words, digits)) for digits in (_ZEROS, _NINES))
        self._forms[key] = zeros if zeros == nines else None


def _make_room(held: Dict[Any, Any]) -> None:
    """Drop the oldest entry of a full cache."""
    if len(held) >= MAX_SHAPES:
        del held[next(iter(held))]


def _without(data: bytes, words: Tuple[slice, ...], digits: bytes) -> str:
    """Return a line with other digits in its numbers, and unchanged digits in its words."""
    changed = bytearray(data.translate(digits))
    for word in words:
        changed[word] = data[word]
    return changed.decode()
