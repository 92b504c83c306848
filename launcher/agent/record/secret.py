"""A run's secrets: the file that holds them on the host, and their replacement by `***` in all output.

The file `secrets.env` lies in the record, where the agent in a container can erase it too. It is one JSON
object from name to value, so a value may contain any byte but NUL. A byte that is not valid UTF-8 becomes a
lone surrogate, as in Python's os.environ.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, AnyStr, Dict, Generic, Iterable, Iterator, List, Tuple

from . import strict_json
from .files import sync_folder
from .rundir import Run
from .safe_open import UnreadableError, open_regular, parent_of, read_regular, unlink, write_all
from .visible import MAX_ESCAPE, VisibleText, is_plain, open_escape, parted, readings

if TYPE_CHECKING:
    from .run_records import PlanRecord

MODE = 0o600
MAX_BYTES = 16 << 20
STARS = "***"
SHORTEST = 4  # characters; a shorter text would match by chance
SHORTEST_LINE = 8
_PLAIN = re.compile(
    r"[+-]?[\d.,_]{1,7}(?:e[+-]?\d{1,3})?|true|false|yes|no|on|off|none|null|auto", re.IGNORECASE
)
"""Values that appear in every log: replacing them would falsify it."""
_ESCAPE = re.compile(r"%[0-9A-F]{2}")
_MAY_BE_INVISIBLE = re.compile(r"\\[bfru]|[^\x00-\x7e]")
"""Finds JSON that may contain invisible characters: its writer may leave non-ASCII unescaped."""
_OPEN_CHARACTER = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})?\Z")
"""An incomplete UTF-8 character at the end."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def write(run: Run, payload: bytes) -> None:
    """Write the secrets, a JSON object, beside a run's plan. The file must not exist yet.

    Raises OSError, and ValueError for any other payload. The message quotes nothing of the payload.
    """
    _parse(payload)
    descriptor = open_regular(run.secrets, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    try:
        write_all(descriptor, payload)
    finally:
        os.close(descriptor)
    sync_folder(run.record)


def read(run: Run) -> dict[str, str]:
    """Return the secrets of a run by name; empty if the file is missing or invalid."""
    for path in (run.secrets, run.older_secrets):
        try:
            return _parse(read_regular(path, MAX_BYTES))
        except FileNotFoundError:
            continue
        except (OSError, ValueError):  # the caller reports the plan's secrets that are missing here
            break
    return {}


def erase(run: Run) -> None:
    """Overwrite and remove the secrets of a run, if any. Raises OSError if the file cannot be removed."""
    for path in (run.secrets, run.older_secrets):
        _erase(path)


def _erase(path: str) -> None:
    try:
        descriptor = open_regular(path, os.O_WRONLY)
    except FileNotFoundError:
        return
    except UnreadableError:  # e.g. a link, whose target must not be overwritten
        unlink(path)
        return
    try:
        with contextlib.suppress(OSError):  # a full copy-on-write disk: the file is removed anyway
            write_all(descriptor, b"\0" * min(os.fstat(descriptor).st_size, MAX_BYTES))
    finally:
        os.close(descriptor)
    unlink(path)
    sync_folder(parent_of(path))


def as_bytes(value: str) -> bytes:
    """Encode a value as in a process's variables."""
    return value.encode("utf-8", "surrogateescape")


def without(variables: dict[str, str], plan: PlanRecord) -> dict[str, str]:
    """Return variables without those that have the name of a plan's secret: the host may set them too."""
    names = set(plan.get("secrets") or ())
    return {name: value for name, value in variables.items() if name not in names}


def _parse(payload: bytes) -> dict[str, str]:
    try:
        values = strict_json.decode(payload)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(
        _NAME.fullmatch(name) and isinstance(value, str) and "\0" not in value
        for name, value in values.items()
    ):
        raise ValueError("not a table of secrets") from None
    return values


class _Forms(Generic[AnyStr]):
    """The strings to find, as text or as bytes."""

    def __init__(self, forms: Iterable[AnyStr], either: AnyStr) -> None:
        """Prepare the search; `either` is `|` as text or bytes."""
        self.all: List[AnyStr] = sorted(forms, key=len, reverse=True)
        self._least: List[AnyStr] = [
            form for form in self.all if not any(one in form for one in self.all if one != form)
        ]
        self.longest = max(map(len, self.all), default=0)
        self.pattern: re.Pattern[AnyStr] = re.compile(either.join(map(re.escape, self.all)))
        self._first: re.Pattern[AnyStr] = re.compile(either.join({re.escape(form[:1]) for form in self.all}))
        self._heads: Dict[AnyStr, List[AnyStr]] = {}
        for form in self.all:
            for size in range(1, SHORTEST + 1):
                self._heads.setdefault(form[:size], []).append(form)

    def are_in(self, data: AnyStr) -> bool:
        """Whether data contains one of the strings: quicker than the pattern."""
        return any(form in data for form in self._least)

    def begun(self, data: AnyStr) -> List[AnyStr]:
        """Return the strings that begin with data."""
        return [form for form in self._heads.get(data[:SHORTEST], ()) if form.startswith(data)]

    def open_end(self, data: AnyStr) -> int:
        """Return the start of the first string that the data's end cuts off; the data's length without one."""
        for match in self._first.finditer(data, max(0, len(data) - self.longest + 1)):
            start = match.start()
            for form in self._heads.get(data[start : start + SHORTEST], ()):
                if len(form) > len(data) - start and form.startswith(data[start:]):
                    return start
        return len(data)


class Redactor:
    """Replaces secret values in text, verbatim and in the encodings in which programs print them.

    Values are also found if escapes or control characters interrupt them (visible.py). These are replaced
    with the value.
    """

    def __init__(self, values: Iterable[str]) -> None:
        """Prepare the search for these values."""
        forms = {form for value in values for form in _forms(value)}
        self._text = _Forms(forms, "|")
        self._bytes = _Forms(map(as_bytes, forms), b"|")
        self._bare = {json.dumps(form)[1:-1].replace("\\", "") for form in forms}

    def is_in_json(self, text: str) -> bool:
        """Whether JSON text may contain a value: a quick check that ignores backslashes."""
        bare = text.replace("\\", "") if "\\" in text else text
        return any(form in bare for form in self._bare) or (
            bool(self._bare) and _MAY_BE_INVISIBLE.search(text) is not None
        )

    def redact(self, value: Any) -> Any:
        """Return a JSON value with secrets replaced by stars in its strings and keys."""
        if not self._text.all:
            return value
        if isinstance(value, str):
            if value.isprintable():
                return self._text.pattern.sub(STARS, value)
            return _starred(value, self._spans(value, readings(value)), len(value))[0]
        if isinstance(value, dict):
            return {self.redact(key): self.redact(element) for key, element in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.redact(element) for element in value]
        return value

    def redact_bytes(self, data: bytes) -> bytes:
        """Return bytes with secrets replaced by stars."""
        if not self._bytes.all:
            return data
        if is_plain(data):
            return self._bytes.pattern.sub(STARS.encode(), data)
        return as_bytes(str(self.redact(data.decode("utf-8", "surrogateescape"))))

    def redact_but_end(self, data: bytes) -> Tuple[bytes, bytes]:
        """Return redacted bytes, and the unredacted end that may be the start of a value."""
        if not self._bytes.all:
            return data, b""
        if not is_plain(data):
            return self._redact_but_end(data)
        end = self._bytes.open_end(data)
        if self._bytes.are_in(data):
            spans = [match.span() for match in self._bytes.pattern.finditer(data)]
            done, end = _starred(data.decode("latin-1"), spans, end)
            return done.encode("latin-1"), data[end:]
        return data[:end], data[end:]

    def _redact_but_end(self, data: bytes) -> Tuple[bytes, bytes]:
        """Redact bytes with invisible characters. The end may also begin an escape or a character."""
        whole = len(data) - len(_OPEN_CHARACTER.search(data)[0])  # type: ignore[index]  # it also matches nothing
        text = data[:whole].decode("utf-8", "surrogateescape")
        before = text[: open_escape(text)]
        seen = list(readings(before))
        end = self._text.open_end(before)
        for one in seen:
            place = self._text.open_end(one.text)
            if place < len(one.text):
                end = min(end, one.place(place))
        done, end = _starred(text, self._spans(text, seen), end)
        rest = text[end:]
        if len(rest) > self._text.longest + MAX_ESCAPE:  # else the rest would be read again with each piece
            shown, hidden = parted(rest)
            done += str(self.redact(hidden))
            if len(shown) > self._text.longest + MAX_ESCAPE:
                done, shown = done + str(self.redact(shown)), ""
            rest = shown
        return as_bytes(done), as_bytes(rest) + data[whole:]

    def _spans(self, text: str, seen: Iterable[VisibleText]) -> List[Tuple[int, int]]:
        """Return the sorted spans of secret values in a text: in the text itself, and in its readings."""
        found = self._text.pattern.finditer
        spans = [match.span() for match in found(text)] if self._text.are_in(text) else []
        for one in seen:
            if self._text.are_in(one.text):
                spans += [
                    (one.place(match.start()), one.place(match.end() - 1) + 1) for match in found(one.text)
                ]
        return sorted(spans)

    def redact_end(self, data: bytes) -> bytes:
        """Redact the end of a stream. If the end is the first half or more of a value, it becomes stars too."""
        shown = data if is_plain(data) else as_bytes(parted(data.decode("utf-8", "surrogateescape"))[0])
        if len(shown) >= SHORTEST_LINE and any(
            2 * len(shown) >= len(form) for form in self._bytes.begun(shown)
        ):
            return STARS.encode()
        return self.redact_bytes(data)


def _starred(text: str, spans: Iterable[Tuple[int, int]], end: int) -> Tuple[str, int]:
    """Return a text up to `end` with stars for its spans, and the position up to which it was taken.

    That position is `end`, or the end of a span that begins before `end`.
    """
    pieces: List[str] = []
    done = 0
    for first, behind in spans:
        if first >= end:
            break
        if first >= done:
            pieces += [text[done:first], STARS]
        done = max(done, behind)
    end = max(end, done)
    return "".join([*pieces, text[done:end]]), end


class Redaction:
    """Redacts a stream of bytes, including values that arrive in pieces."""

    def __init__(self, redactor: Redactor) -> None:
        """Start at the first byte of a stream."""
        self._redactor = redactor
        self._rest = b""

    def feed(self, piece: bytes) -> bytes:
        """Take the next bytes; return the bytes that are redacted so far."""
        data, self._rest = self._redactor.redact_but_end(self._rest + piece)
        return data

    def finish(self) -> bytes:
        """Return the bytes that were held back, at the end of the stream."""
        rest, self._rest = self._rest, b""
        return self._redactor.redact_end(rest)


def _forms(value: str) -> set[str]:
    """Return the forms in which a program may print a value. Each line of a long value counts as a value too.

    A short plain number or a common word has no forms.
    """
    if _PLAIN.fullmatch(value.strip()):
        return set()
    from urllib.parse import quote, quote_plus  # imported here: few runs have a secret

    lines = [line.strip() for line in value.splitlines()]
    whole = {value, value.strip()}
    forms: set[str] = set()
    for text in whole | {line for line in lines if len(line) >= SHORTEST_LINE}:
        raw = as_bytes(text)
        in_json = json.dumps(text)[1:-1]
        forms |= {text, in_json, json.dumps(in_json)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        forms |= {repr(text)[1:-1], repr(raw)[2:-1]}
        quoted = {quote(raw), quote(raw, safe=""), quote_plus(raw)}
        forms |= quoted | {_ESCAPE.sub(lambda match: match[0].lower(), form) for form in quoted}
        if text in whole:
            forms |= {raw.hex(), raw.hex().upper(), *_in_base64(raw)}
    return {form for form in map(str.strip, forms) if len(form) >= SHORTEST}


def _in_base64(raw: bytes) -> Iterator[str]:
    """Yield the base64 of a value, and the part of it that remains behind other text, as in `Basic`."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(raw).decode().rstrip("=")
        for before, first in ((0, 0), (1, 2), (2, 3)):
            code = encode(b"\0" * before + raw).decode().rstrip("=")
            inner = code[first : len(code) - ((before + len(raw)) % 3 != 0)]
            if len(inner) >= SHORTEST_LINE:
                yield inner
