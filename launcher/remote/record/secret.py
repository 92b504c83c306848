"""A run's secrets: the file that holds them on the host, and their replacement by `***` in everything that is written.

It lies in the record, where the agent in a container can erase it too. `secrets.env` is one JSON object from name to value, so that a value may contain any byte but NUL. A byte that is not
valid UTF-8 becomes a lone surrogate, as in Python's own os.environ.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
from typing import Any, Iterable, Iterator

from . import strict_json
from .files import sync_folder
from .rundir import Run
from .safe_open import UnreadableError, open_regular, parent_of, read_regular, unlink, write_all

MODE = 0o600
MOST_BYTES = 16 << 20
STARS = "***"
SHORTEST = 4  # characters; a shorter text would occur by chance
SHORTEST_LINE = 8
_PLAIN = re.compile(
    r"[+-]?[\d.,_]{1,7}(?:e[+-]?\d{1,3})?|true|false|yes|no|on|off|none|null|auto", re.IGNORECASE
)
"""Values that stand in every log: to replace them would falsify it."""
_ESCAPE = re.compile(r"%[0-9A-F]{2}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def write(run: Run, payload: bytes) -> None:
    """Write the secrets, a JSON object, beside a run's plan. The file must not exist yet.

    Raises OSError, and ValueError for any other payload; its message contains nothing of the payload.
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
            return _parse(read_regular(path, MOST_BYTES))
        except FileNotFoundError:
            continue
        except (OSError, ValueError):  # the caller reports the names that the plan lists and this lacks
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
    except UnreadableError:  # a link, say: what it leads to is not ours to overwrite
        unlink(path)
        return
    try:
        with contextlib.suppress(OSError):  # a full copy-on-write disk: the file is removed anyway
            write_all(descriptor, b"\0" * min(os.fstat(descriptor).st_size, MOST_BYTES))
    finally:
        os.close(descriptor)
    unlink(path)
    sync_folder(parent_of(path))


def as_bytes(value: str) -> bytes:
    """Encode a value as a process's variables hold it."""
    return value.encode("utf-8", "surrogateescape")


def without(variables: dict[str, str], plan: dict[str, Any]) -> dict[str, str]:
    """Return variables without the secrets that a plan names: a host may have some of these names in its own."""
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


class Redactor:
    """Replaces secret values in text, verbatim and in the encodings in which programs print them."""

    def __init__(self, values: Iterable[str]) -> None:
        """Prepare the search for these values."""
        forms = {form for value in values for form in _forms(value)}
        self._text = sorted(forms, key=len, reverse=True)
        self._bytes = [as_bytes(form) for form in self._text]
        self._in_text = re.compile("|".join(map(re.escape, self._text)))
        self._in_bytes = re.compile(b"|".join(map(re.escape, self._bytes)))
        self._bare = {json.dumps(form)[1:-1].replace("\\", "") for form in forms}
        self._longest = max(map(len, self._bytes), default=0)
        self._first = re.compile(b"|".join({re.escape(form[:1]) for form in self._bytes}))
        self._heads: dict[bytes, list[bytes]] = {}
        for form in self._bytes:
            for size in range(1, SHORTEST + 1):
                self._heads.setdefault(form[:size], []).append(form)

    def is_in_json(self, text: str) -> bool:
        """Return whether JSON text may contain a value: a quick check that ignores backslashes."""
        bare = text.replace("\\", "") if "\\" in text else text
        return any(form in bare for form in self._bare)

    def redact(self, value: Any) -> Any:
        """Return a JSON value with stars in its strings and keys."""
        if not self._text:
            return value
        if isinstance(value, str):
            return self._in_text.sub(STARS, value)
        if isinstance(value, dict):
            return {self.redact(key): self.redact(element) for key, element in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.redact(element) for element in value]
        return value

    def redact_bytes(self, data: bytes) -> bytes:
        """Return bytes with stars in them."""
        return self._in_bytes.sub(STARS.encode(), data) if self._bytes else data

    def redact_but_end(self, data: bytes) -> tuple[bytes, bytes]:
        """Return bytes with stars in them, and the unredacted end, which may be the start of a value."""
        end = self._open_end(data)
        if not any(form in data for form in self._bytes):
            return data[:end], data[end:]
        pieces = []
        done = 0
        for match in self._in_bytes.finditer(data):
            if match.start() >= end:
                break
            pieces += [data[done : match.start()], STARS.encode()]
            done = match.end()
        end = max(end, done)
        return b"".join([*pieces, data[done:end]]), data[end:]

    def redact_end(self, data: bytes) -> bytes:
        """Return the held end of a stream with stars in it: for the greater part of a value that was cut off, too."""
        begun = [form for form in self._heads.get(data[:SHORTEST], ()) if form.startswith(data)]
        if len(data) >= SHORTEST_LINE and any(2 * len(data) >= len(form) for form in begun):
            return STARS.encode()
        return self.redact_bytes(data)

    def _open_end(self, data: bytes) -> int:
        """Return the position of the first value that the next bytes may complete."""
        for match in self._first.finditer(data, max(0, len(data) - self._longest + 1)):
            start = match.start()
            for form in self._heads.get(data[start : start + SHORTEST], ()):
                if len(form) > len(data) - start and form.startswith(data[start:]):
                    return start
        return len(data)


class Redaction:
    """Redacts a stream of bytes, including values that arrive in pieces."""

    def __init__(self, redactor: Redactor) -> None:
        """Start at the first byte of a stream."""
        self._redactor = redactor
        self._rest = b""

    def feed(self, piece: bytes) -> bytes:
        """Take the next bytes; return those that are redacted by now."""
        data, self._rest = self._redactor.redact_but_end(self._rest + piece)
        return data

    def finish(self) -> bytes:
        """Return the bytes held back: the stream has ended."""
        rest, self._rest = self._rest, b""
        return self._redactor.redact_end(rest)


def _forms(value: str) -> set[str]:
    """Return the forms in which a program may print a value; each line of a long value counts as one too.

    A value that is a short plain number or a common word has none.
    """
    if _PLAIN.fullmatch(value.strip()):
        return set()
    from urllib.parse import quote, quote_plus  # few runs have a secret

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
    """Yield the base64 of a value, and what of it is the same behind any other text, as in HTTP's `Basic`."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(raw).decode().rstrip("=")
        for before, first in ((0, 0), (1, 2), (2, 3)):
            code = encode(b"\0" * before + raw).decode().rstrip("=")
            inner = code[first : len(code) - ((before + len(raw)) % 3 != 0)]
            if len(inner) >= SHORTEST_LINE:
                yield inner
