"""Read a file of variables with python-dotenv's parser, one `NAME=VALUE` a line, without `$` expansion."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple, NoReturn

from launcher.base.bounded_read import read_bounded
from launcher.base.toml import MAX_BYTES
from launcher.errors import BadFileError

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class HiddenValues(NamedTuple):
    """Values of variables by name. Messages and tracebacks show only the names."""

    values: Mapping[str, str] = {}

    def __repr__(self) -> str:
        """Return the names of the variables, without their values."""
        return f"HiddenValues({', '.join(self.values)})"


def read_all(paths: Sequence[str]) -> HiddenValues:
    """Return the variables of files; a later file wins. Each file is read once, so that it may be a pipe.

    Raises BadFileError, which gives the line's number but no text of the file.
    """
    return HiddenValues({name: value for path in paths for name, value in _read(path)})


def _read(path: str) -> Iterator[tuple[str, str]]:
    try:
        text = read_bounded(Path(path).expanduser(), MAX_BYTES, takes_pipe=True).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFileError(f"--env-file {path}: is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise BadFileError(f"--env-file {path}: cannot be read: {error.strerror}") from error
    yield from parse(text.replace("\r\n", "\n"), path)


def parse(text: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield the variables of a text.

    A value may be quoted; a name without a value takes the client's variable.
    """
    from dotenv.parser import parse_stream

    for found in parse_stream(StringIO(text)):
        before = len(found.original.string) - len(found.original.string.lstrip())
        line = found.original.line + found.original.string.count("\n", 0, before)
        value = found.value
        if found.error or (found.key is not None and not _NAME.fullmatch(found.key)):
            _refuse(line, path, "is not NAME=VALUE, or begins a quoted value that does not end")
        if found.key is None:
            continue  # a comment
        if value is None and (value := os.environ.get(found.key)) is None:
            _refuse(line, path, "names a variable that is not set here")
        if "\0" in value:
            _refuse(line, path, "holds a NUL byte")
        yield found.key, value


def _refuse(line: int, path: str, why: str) -> NoReturn:
    raise BadFileError(f"--env-file {path}: line {line} {why}")
