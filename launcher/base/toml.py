"""Read TOML files of users as plain tables, without pydantic, so that listing names is quick."""

from __future__ import annotations

import json
import logging
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from launcher.base.bounded_read import read_bounded
from launcher.errors import BadFileError

_LOG = logging.getLogger(__name__)
MAX_BYTES = 4 << 20
MAX_DEPTH = 50
_MAX_DOTS = 1000
"""The largest number of dots in a line: the time to parse a dotted key grows with the square of its parts."""
_WHOLE_NUMBERS = range(-(1 << 63), 1 << 63)
"""The range that TOML guarantees for a whole number."""


def read_text(path: Path) -> str:
    """Read a user's text file.

    Raises BadFileError if it cannot be read, is not a regular file, is very large, or is not UTF-8.
    """
    try:
        data = read_bounded(path, MAX_BYTES)
        _LOG.debug("read %s", path)
        return data.decode()
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFileError(f"{path}: is not UTF-8 text (byte {error.start})") from error


TomlTable = dict[str, Any]
"""A table as a user wrote it. Its keys are checked where they are read."""


class Toml(NamedTuple):
    """The tables of a TOML file, and its text."""

    tables: TomlTable
    text: str


def read_toml(path: Path) -> Toml:
    """Read a TOML file. Raises BadFileError if it cannot be read or is not TOML."""
    text = read_text(path)
    return Toml(parse_toml(text, str(path)), text)


def parse_toml(text: str, where: str) -> TomlTable:
    """Return the tables of a text. `where` names its file for error messages.

    Raises BadFileError for a text that is not TOML, that is deeper than 50 tables and lists, or that holds a
    whole number of more than 64 bits.
    """
    if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
        raise BadFileError(f"{where}: {_TOO_DEEP}")
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise BadFileError(f"{where}: {_TOO_DEEP}") from None
    except ValueError as error:  # TOMLDecodeError, or int's own for thousands of digits
        raise BadFileError(f"{where}: is not TOML: {_plain(str(error), text)}") from error
    level: list[Any] = [tables]
    for _ in range(MAX_DEPTH):
        inner = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        if any(isinstance(value, int) and value not in _WHOLE_NUMBERS for value in inner):
            raise BadFileError(f"{where}: holds a whole number of more than 64 bits")
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return tables
    raise BadFileError(f"{where}: {_TOO_DEEP}")


def _plain(said: str, text: str) -> str:
    """Return tomllib's message in the terms of the file."""
    said = said.replace(r"Illegal character '\n'", "a quote is not closed")
    said = said.replace("Cannot overwrite a value", "this table has the name of a value above it")
    hint = "\n  the table of a host is   [hosts.NAME]" if re.search(r"(?m)^\s*\[host\.", text) else ""
    return f"{said}{hint}"


def inline(value: object) -> str:
    """Write a value of a TOML file on one line, e.g. after `key = `. Raises ValueError for a date or a time."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {inline(one)}' for key, one in value.items())}}}"
    raise ValueError(f"{value!r} is not a number, text, flag, list or table")


_TOO_DEEP = f"has tables or lists more than {MAX_DEPTH} deep"
