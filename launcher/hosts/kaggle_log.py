"""A kernel's log, as one stream that outlives cuts.

Kaggle replays a stream from its beginning at each connection, by its own client's words; so what was seen is skipped by its
count. After a session the log is JSON. That it then consists of the same pieces is not known: a reader that must not lose or
repeat anything has to tell by the pieces' contents.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from pydantic import ValidationError

from launcher.errors import ServiceError, ServiceUnreachableError
from launcher.hosts.kaggle_service import HOST, KaggleService
from launcher.hosts.service_wire import Download
from launcher.values.kaggle_kernel import KaggleReason as Reason
from launcher.values.kaggle_kernel import KernelRef, LogPiece

END_OF_LOG = "END_OF_LOG"
SILENCE_S = 60.0
FAILURES = 5
PAUSE_S = 1.0
EVENT_BYTES = 32_000_000


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
        events = json.loads(text or "[]")
        return [LogPiece.read(position, event) for position, event in enumerate(events)]
    except (ValueError, TypeError):
        raise ValueError("it is not a log of Kaggle's") from None


def _piece(position: int, event: object, ref: KernelRef) -> LogPiece:
    try:
        return LogPiece.read(position, event)
    except ValidationError:
        words = f"{HOST}: the log of {ref}: piece {position} cannot be read"
        raise ServiceError(HOST, Reason.MALFORMED, words) from None


def _events(download: Download, ref: KernelRef) -> Iterator[object]:
    """Yield the events of a log from its first one, and END_OF_LOG if it is whole."""
    if not download.kind.startswith("text/event-stream"):
        yield from _items(download, ref)
        yield END_OF_LOG
        return
    for line in _lines(download):
        name, _, payload = line.partition(b":")
        text = payload.decode(errors="replace").strip()
        if name == b"data" and text == END_OF_LOG:
            yield END_OF_LOG
            return
        if name == b"data":
            yield _event(text)


def _event(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return {"data": text}  # as Kaggle's own client takes it


def _lines(download: Download) -> Iterator[bytes]:
    """Yield the whole lines of a stream; what is cut in the middle is none."""
    held = b""
    for piece in download.pieces():
        *lines, held = (held + piece).split(b"\n")
        _check_size(len(held))
        yield from (line.rstrip(b"\r") for line in lines)


def _check_size(size: int) -> None:
    """Raise ServiceError for an event that is larger than we want to hold."""
    if size > EVENT_BYTES:
        words = f"{HOST}: an event of a log is larger than {EVENT_BYTES:,} bytes"
        raise ServiceError(HOST, Reason.TOO_LARGE, words)


def _items(download: Download, ref: KernelRef) -> Iterator[object]:
    """Yield the items of a JSON array as they come: a log may be larger than what we want to hold."""
    decoder, held, is_open = json.JSONDecoder(), "", False
    pending = b""
    for piece in download.pieces():
        pending += piece
        text = pending.decode(errors="ignore") if _is_whole(pending) else ""
        if not text:
            continue
        pending, held = b"", held + text
        while True:
            held = held.lstrip(" \t\r\n" + ("," if is_open else ""))
            if not is_open and held.startswith("["):
                is_open, held = True, held[1:]
                continue
            try:
                item, end = decoder.raw_decode(held) if is_open and held[:1] == "{" else (None, 0)
            except ValueError:
                break
            if end == 0:
                break
            yield item
            held = held[end:]
        _check_size(len(held))
    rest = (held + pending.decode(errors="replace")).strip()
    if rest not in (("]",) if is_open else ("",)):
        raise ServiceError(HOST, Reason.MALFORMED, f"{HOST}: the log of {ref} cannot be read")


def _is_whole(data: bytes) -> bool:
    """Whether some bytes end with a whole UTF-8 character."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return True
