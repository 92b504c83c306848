"""A kernel's log, as one stream that continues after a cut.

According to Kaggle's own client, the service replays a stream from its beginning at each connection, so pieces
already seen are skipped by their count. After a session the log is JSON. Whether the JSON has the same pieces
is unknown: a reader that must not lose or repeat anything has to compare the pieces' contents.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator

from pydantic import ValidationError

from launcher.agent.record import strict_json
from launcher.backends.kaggle.kaggle_kernel import KaggleReason as Reason
from launcher.backends.kaggle.kaggle_kernel import KernelRef
from launcher.backends.kaggle.kaggle_service import HOST, KaggleService
from launcher.backends.spool.segments import LogPiece
from launcher.errors import ServiceError, ServiceUnreachableError
from launcher.transport.http.service_wire import Download

END_OF_LOG = "END_OF_LOG"
SILENCE_S = 60.0
FAILURES = 5
PAUSE_S = 1.0
EVENT_BYTES = 32_000_000
"""The largest event, e.g. a line that a training prints. A larger one is replaced by a note."""
_LEFT_OUT = b'data: {"data": "launch leaves out %d bytes that were printed at once\\n"}'
_BETWEEN = re.compile(r"[\s,]*")
LOG_BYTES = 64_000_000
"""The largest log that is read after a session.

The record of a session with a larger one comes from its outputs.
"""


def follow(
    service: KaggleService,
    ref: KernelRef,
    position: int = 0,
    pause_s: float = PAUSE_S,
    silence_s: float = SILENCE_S,
) -> Iterator[LogPiece | None]:
    """Yield the pieces of a session's log from a position to its end.

    At each cut, yield None, so that the caller may stop. A stream that is cut or silent is opened again.
    Raises ServiceUnreachableError after FAILURES cuts in a row without new pieces, and ServiceError with
    LOG_REWRITTEN if the log ends before the position.
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


def _piece(position: int, event: object, ref: KernelRef) -> LogPiece:
    values = event if isinstance(event, dict) else {}
    piece = {"position": position, "stream": values.get("stream_name", "stdout"), "text": values.get("data")}
    try:
        return LogPiece.model_validate(piece, strict=True)
    except ValidationError:
        words = f"{HOST}: the log of {ref}: piece {position} cannot be read"
        raise ServiceError(HOST, Reason.MALFORMED, words) from None


def _events(download: Download, ref: KernelRef) -> Iterator[object]:
    """Yield the events of a log from its first one, and END_OF_LOG if it is complete."""
    if not download.kind.startswith("text/event-stream"):
        yield from _items(download, ref)
        yield END_OF_LOG
        return
    for line in _lines(download):
        name, _, payload = line.partition(b":")
        if name == b"data" and payload.strip() == END_OF_LOG.encode():
            yield END_OF_LOG
            return
        if name == b"data":
            yield _event(payload.decode(errors="replace").strip())


def _event(text: str) -> object:
    try:
        return strict_json.decode(text)
    except ValueError:
        return {"data": text}  # as Kaggle's own client does


def _lines(download: Download) -> Iterator[bytes]:
    """Yield the complete lines of a stream, and drop one that is cut. Each byte is examined once."""
    held, size = bytearray(), 0
    for piece in download.pieces():
        first, *more = piece.split(b"\n")
        held += first[: max(0, EVENT_BYTES - size)]
        size += len(first)
        for start in more:
            yield bytes(held) if size <= EVENT_BYTES else _LEFT_OUT % size
            held, size = bytearray(start[:EVENT_BYTES]), len(start)


def _items(download: Download, ref: KernelRef) -> list[object]:
    """Return the items of a log in the form of a JSON array, as after a session."""
    text = bytearray()
    for piece in download.pieces():
        text += piece
        if len(text) > LOG_BYTES:
            words = f"{HOST}: the log of {ref} is larger than {LOG_BYTES / 1e6:.0f} MB"
            raise ServiceError(HOST, Reason.TOO_LARGE, words)
    said = text.decode(errors="replace")
    try:
        found = strict_json.decode(said)
    except ValueError:
        found = _whole_items(said)
    if not isinstance(found, list):
        raise ServiceError(HOST, Reason.MALFORMED, f"{HOST}: the log of {ref} cannot be read")
    return found


def _whole_items(text: str) -> list[object] | None:
    """Return the items of an array that was cut in or after an item, and a note; None for any other text."""
    items: list[object] = []
    decoder, place = json.JSONDecoder(), text.find("[") + 1
    if text[:place].strip() != "[":
        return None
    with contextlib.suppress(ValueError, RecursionError):
        while place < len(text):
            between = _BETWEEN.match(text, place)
            item, place = decoder.raw_decode(text, place if between is None else between.end())
            items.append(item)
    rest = text[place:].strip(" ,\r\n")
    is_cut = not rest or (rest.startswith("{") and not rest.endswith(("]", "}")))
    return [*items, {"data": "launch: Kaggle's log is cut here\n"}] if items and is_cut else None
