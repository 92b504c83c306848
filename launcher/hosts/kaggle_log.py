"""A kernel's log, as one stream that outlives cuts.

Kaggle replays a stream from its beginning at each connection, by its own client's words; so what was seen is skipped by its
count. After a session the log is JSON. That it then consists of the same pieces is not known: a reader that must not lose or
repeat anything has to tell by the pieces' contents.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import ValidationError

from launcher.errors import ServiceError, ServiceUnreachableError
from launcher.hosts.kaggle_service import HOST, KaggleService
from launcher.hosts.service_wire import Download
from launcher.remote.record import strict_json
from launcher.values.kaggle_kernel import KaggleReason as Reason
from launcher.values.kaggle_kernel import KernelRef, LogPiece

END_OF_LOG = "END_OF_LOG"
SILENCE_S = 60.0
FAILURES = 5
PAUSE_S = 1.0
EVENT_BYTES = 32_000_000
"""What is kept of one event, e.g. of a line that a training prints; the rest is left out, and said to be."""
MOST_BRACKETS = 10_000
"""In one event; Kaggle's have two."""
_PLAIN = re.compile(rb'[^"{}\[\]]*+')
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_WHOLE_TEXT = rb'"((?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+)'
_STREAM_NAME = re.compile(rb'"stream_name"\s*:\s*' + _WHOLE_TEXT + b'"', re.DOTALL)
_DATA = re.compile(rb'"data"\s*:\s*' + _WHOLE_TEXT, re.DOTALL)


def follow(
    service: KaggleService,
    ref: KernelRef,
    position: int = 0,
    pause_s: float = PAUSE_S,
    silence_s: float = SILENCE_S,
) -> Iterator[LogPiece | None]:
    """Yield the pieces of a session's log from a position on, until its end; None at each cut, so that a caller may stop.

    A stream that is cut or silent is opened again. Raises ServiceUnreachableError after FAILURES cuts in a row that brought
    nothing new, and ServiceError with LOG_REWRITTEN if the log ends before the position.
    """
    failures = 0
    while True:
        count, before, is_ended = 0, position, False
        try:
            with service.open_log(ref, silence_s) as download:
                for event in _events(download, ref):
                    if event is END_OF_LOG:
                        is_ended = True
                    elif count >= position:
                        yield _piece(count, event, ref)
                        position = count + 1
                    count += event is not END_OF_LOG
            cut = ServiceUnreachableError(HOST, Reason.BROKEN_OFF, f"{HOST}: the log of {ref} breaks off")
        except ServiceUnreachableError as error:
            cut = error
        if is_ended:
            if count < position:
                words = f"{HOST}: the log of {ref} ends after {count} pieces, {position} were read before"
                raise ServiceError(HOST, Reason.LOG_REWRITTEN, words)
            return
        is_quiet = cut.reason == Reason.SILENT  # a training may print nothing for long
        failures = 0 if position > before or is_quiet else failures + 1
        if failures >= FAILURES:
            raise cut
        yield None
        time.sleep(0.0 if is_quiet else pause_s)


def read_log(text: str) -> list[LogPiece]:
    """Return the pieces of a log that came with a session's outputs. Raises ValueError if it is no such log."""
    try:
        events = strict_json.decode(text or "[]")
        if not isinstance(events, list):
            raise TypeError("no array")
        return [LogPiece.read(position, event) for position, event in enumerate(events)]
    except (ValueError, TypeError):
        raise ValueError("it is not a log of Kaggle's") from None


def _piece(position: int, event: object, ref: KernelRef) -> LogPiece:
    try:
        return LogPiece.read(position, event)
    except ValidationError:
        words = f"{HOST}: the log of {ref}: piece {position} cannot be read"
        raise ServiceError(HOST, Reason.MALFORMED, words) from None


class _Raw(NamedTuple):
    """The bytes of an event, and how many more it had than are kept."""

    data: bytes
    left_out: int


def _events(download: Download, ref: KernelRef) -> Iterator[object]:
    """Yield the events of a log from its first one, and END_OF_LOG if it is whole."""
    if not download.kind.startswith("text/event-stream"):
        yield from _items(download, ref)
        yield END_OF_LOG
        return
    for line in _lines(download):
        name, _, payload = line.data.partition(b":")
        if name == b"data" and payload.strip() == END_OF_LOG.encode():
            yield END_OF_LOG
            return
        if name == b"data":
            yield _event(line._replace(data=payload))


def _event(raw: _Raw) -> object:
    text = raw.data.decode(errors="replace").strip()
    if raw.left_out:
        return _cut(raw)
    try:
        return strict_json.decode(text)
    except ValueError:
        return {"data": text}  # as Kaggle's own client takes it


def _cut(raw: _Raw) -> object:
    """Return an event of which the beginning was kept: its text up to there, and how much is missing."""
    if not raw.data.lstrip().startswith(b"{"):
        text = raw.data.decode(errors="ignore").strip()
    elif found := _DATA.search(raw.data):
        text = strict_json.decode(f'"{found[1].decode(errors="ignore")}"')
    else:
        text = ""
    stream = _STREAM_NAME.search(raw.data)
    return {
        "stream_name": stream[1].decode(errors="replace") if stream else "stdout",
        "data": f"{text} … launch leaves out the rest, {raw.left_out:,} bytes that were printed at once\n",
    }


def _lines(download: Download) -> Iterator[_Raw]:
    """Yield the whole lines of a stream; what is cut in the middle is none. Each byte is looked at once."""
    held = _Held()
    for piece in download.pieces():
        first, *more = piece.split(b"\n")
        held.add(first)
        for start in more:
            yield held.taken()
            held.add(start)


class _Held:
    """What has come of an event, up to EVENT_BYTES."""

    def __init__(self) -> None:
        self._data, self._left_out = bytearray(), 0

    def add(self, data: bytes) -> None:
        """Keep what there is room for."""
        kept = data[: EVENT_BYTES - len(self._data)]
        self._data += kept
        self._left_out += len(data) - len(kept)

    def taken(self) -> _Raw:
        """Return the event, and begin another one."""
        raw = _Raw(bytes(self._data), self._left_out)
        self._data, self._left_out = bytearray(), 0
        return raw


def _items(download: Download, ref: KernelRef) -> Iterator[object]:
    """Yield the items of a JSON array as they come: a log may be larger than what we want to hold."""
    array = _Array()
    try:
        for piece in download.pieces():
            for raw in array.take(piece):
                yield _cut(raw) if raw.left_out else strict_json.decode(raw.data.decode(errors="replace"))
        array.check_end()
    except ValueError:
        words = f"{HOST}: the log of {ref} cannot be read"
        raise ServiceError(HOST, Reason.MALFORMED, words) from None


class _Array:
    """Finds the objects in a JSON array that comes in pieces. Each byte is looked at once, however long an object is.

    Its methods raise ValueError for anything else.
    """

    def __init__(self) -> None:
        self._held, self._depth, self._brackets = _Held(), 0, 0
        self._is_in_text = self._is_over = False
        self._rest = b""

    def take(self, piece: bytes) -> Iterator[_Raw]:
        """Yield the objects that end in a piece."""
        data, at = self._rest + piece, 0
        self._rest = b""
        while at < len(data):
            found = (_STRING if self._is_in_text else _PLAIN).match(data, at)
            end = found.end() if found else at
            mark = data[end : end + 1]
            if self._depth < 2 and data[at:end].strip(b" \t\r\n" + b"," * self._depth):
                raise ValueError("something between the objects")
            if mark == b"\\":  # what it escapes is in the next piece
                self._held.add(data[at:end])
                self._rest = mark
                return
            if self._depth > 1:
                self._held.add(data[at : end + 1])
            elif mark == b"{":
                self._held.add(mark)
            self._turn(mark)
            if self._depth == 1 and mark == b"}":
                yield self._held.taken()
            at = end + 1

    def _turn(self, mark: bytes) -> None:
        """Go into or out of a text, an object or a list, as a mark says."""
        if not mark:
            return
        if self._is_over or (
            self._depth < 2 and mark not in (b"[{"[self._depth : self._depth + 1], b"]"[: self._depth])
        ):
            raise ValueError("no array of objects")
        if mark == b'"':
            self._is_in_text = not self._is_in_text
            return
        self._brackets = 1 if self._depth < 2 else self._brackets + 1
        if self._brackets > MOST_BRACKETS:
            raise ValueError("an object with too many brackets")
        self._depth += 1 if mark in b"{[" else -1
        self._is_over = self._depth == 0

    def check_end(self) -> None:
        """Raise ValueError if the array has begun and has not ended."""
        if self._depth:
            raise ValueError("it is cut off")
