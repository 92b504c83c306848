"""Read a file that is checked: a Python source or a notebook, which may be hostile."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path
from typing import NamedTuple

from launcher.base.bounded_read import read_bounded
from launcher.check.reading.module import parse
from launcher.check.reading.notebook import MAX_NOTEBOOK_BYTES, SUFFIX, Notebook, read_notebook
from launcher.check.reading.positions import BOM, Lines, Region
from launcher.check.reading.unchecked import UncheckedError
from launcher.errors import BadFileError

MAX_BYTES = 1_000_000
_NOT_FOR_FILES = (
    "idna",
    "punycode",
    "raw-unicode-escape",
    "raw_unicode_escape",
    "unicode_escape",
    "unicode-escape",
)
"""Encodings of Python that no file has. The time of the first two grows with the square of the length."""


class Source(NamedTuple):
    """A source. `text` is its code in UTF-8, with the byte offsets of `tree`.

    `can_change`: the bytes of the file are those of `text`, or it is a notebook whose cells can be written.
    """

    path: Path
    text: bytes
    tree: ast.Module
    notebook: Notebook | None = None
    can_change: bool = True


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file. Raises UncheckedError for one that cannot be read, is not regular or too large."""
    most = MAX_NOTEBOOK_BYTES if path.suffix == SUFFIX else MAX_BYTES
    try:
        return read_bounded(path, most)
    except OSError as error:
        raise UncheckedError(f"cannot be read: {error.strerror}", is_unreadable=True) from error
    except BadFileError as error:
        if path.is_file():
            raise UncheckedError(f"is larger than {most // 1_000_000} MB: not checked") from error
        raise UncheckedError("is not a regular file: not read", is_unreadable=True) from error
    except ValueError as error:
        raise UncheckedError("cannot be read: no file can have this name", is_unreadable=True) from error


def read_source(path: Path, data: bytes) -> Source:
    """Return the source in the bytes of a file. Raises UncheckedError if it cannot be parsed."""
    if path.suffix == SUFFIX:
        notebook = read_notebook(data)
        return Source(path, notebook.text, parse_text(notebook.text), notebook)
    text = _in_utf8(data)
    return Source(path, text, parse_text(text), None, text is data)


def parse_text(text: bytes) -> ast.Module:
    """Return the tree of a source in UTF-8. Raises UncheckedError with the place of a mistake."""
    try:
        return parse(text.decode("utf-8-sig"))
    except SyntaxError as error:
        line, column = error.lineno or 1, error.offset or 1
        raise UncheckedError(f"syntax error: {error.msg}", Region.at(line, max(1, column))) from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise UncheckedError("is nested too deeply: not checked") from error


def _in_utf8(data: bytes) -> bytes:
    """Return a source in UTF-8. Raises UncheckedError for a binary file, or one in an unknown encoding."""
    if (null := data.find(b"\0")) >= 0:
        raise UncheckedError("is not a text: it has a null byte", _place(data, null))
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        encoding = "utf-8"
        if "encoding" in str(error) and "missing" not in str(error):
            raise UncheckedError("names an encoding that is unknown") from error
    if encoding in ("utf-8", "utf-8-sig"):
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise UncheckedError(
                "is not UTF-8, and names no other encoding", _place(data, error.start)
            ) from error
        return data
    if data.isascii():
        return data
    try:
        if encoding in _NOT_FOR_FILES:
            raise LookupError(encoding)
        return data.decode(encoding).encode()
    except (LookupError, ValueError) as error:
        raise UncheckedError(f"is not {encoding}, the encoding that it names") from error


def _place(data: bytes, offset: int) -> Region:
    line, column = Lines(data[:offset].removeprefix(BOM)).position(offset)
    return Region.at(line, column)
