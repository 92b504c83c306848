"""Read a file of variables, one `NAME=VALUE` a line, as `docker compose` and python-dotenv read it, without `$` expansion."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from launcher.bounded_read import read_bounded
from launcher.errors import BadFileError
from launcher.values.toml import MOST_BYTES

_LINE = re.compile(r"[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*(?P<equals>=)?[ \t]*")
_SKIPPED = re.compile(r"\s*(?:#[^\n]*)?(?:\n|\Z)")
_SINGLE = re.compile(r"'([^']*)'")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BARE = re.compile(r"[^\n]*")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_REST = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


class HiddenValues(NamedTuple):
    """Values of variables by name, which no message and no traceback shows."""

    values: Mapping[str, str] = {}

    def __repr__(self) -> str:
        """Name the variables alone."""
        return f"HiddenValues({', '.join(self.values)})"


def read_all(paths: Sequence[str]) -> HiddenValues:
    """Return the variables of files; a later file wins. Each file is read once, so that it may be a pipe.

    Raises BadFileError, which repeats nothing of a file but its line's number.
    """
    return HiddenValues({name: value for path in paths for name, value in _read(path)})


def _read(path: str) -> Iterator[tuple[str, str]]:
    try:
        text = read_bounded(Path(path).expanduser(), MOST_BYTES, takes_pipe=True).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFileError(f"--env-file {path}: is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise BadFileError(f"--env-file {path}: cannot be read: {error.strerror}") from error
    yield from parse(text.replace("\r\n", "\n"), path)


def parse(text: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield the variables of a text: a value may be quoted, and a name alone takes the client's own variable."""
    at = 0
    while at < len(text):
        if skipped := _SKIPPED.match(text, at):
            at = skipped.end()
            continue
        line = _LINE.match(text, at)
        if line is None:
            _refuse(text, at, path, "is not NAME=VALUE")
        if line["equals"]:
            value, at = _value(text, line.end(), path)
            yield line["name"], value
        else:
            if line["name"] not in os.environ:
                _refuse(text, at, path, "is a name that is not set here")
            at = line.end()
            yield line["name"], os.environ[line["name"]]
        end = _REST.match(text, at)
        if end is None:
            _refuse(text, at, path, "is not NAME=VALUE")
        at = end.end()


def _value(text: str, at: int, path: str) -> tuple[str, int]:
    """Return the value that begins here, and where it ends."""
    if text[at : at + 1] in ("'", '"'):
        is_single = text[at] == "'"
        quoted = (_SINGLE if is_single else _DOUBLE).match(text, at)
        if quoted is None:
            _refuse(text, at, path, "begins a quoted value that does not end")
        value = quoted[1] if is_single else _ESCAPED.sub(_unescaped, quoted[1])
    else:
        quoted = _BARE.match(text, at)
        assert quoted is not None  # noqa: S101 - the pattern matches any text
        value = _COMMENT.sub("", quoted[0]).strip()
    if "\0" in value:
        _refuse(text, at, path, "holds a NUL byte")
    return value, quoted.end()


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[1], found[0])


def _refuse(text: str, at: int, path: str, why: str) -> NoReturn:
    raise BadFileError(f"--env-file {path}: line {text.count(chr(10), 0, at) + 1} {why}")
