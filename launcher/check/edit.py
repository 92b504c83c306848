"""Changes of a source, as replaced bytes: all else keeps its comments and its layout."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from launcher.check.inference.value import Place
from launcher.check.reading.module import Module


class Edit(NamedTuple):
    """Bytes `start` to `end` of a file, and what replaces them."""

    path: Path
    start: int
    end: int
    text: bytes


class _Word(NamedTuple):
    """One argument of a call: its bytes, and the byte after the comma that follows it, if one does."""

    start: int
    end: int
    after_comma: int | None


def replace(place: Place, text: str) -> Edit:
    """Replace an expression."""
    start, end = place.module.span(place.node)
    return Edit(place.module.path, start, end, text.encode())


def replace_node(module: Module, node: ast.expr | ast.stmt | ast.keyword, text: str) -> Edit:
    """Replace a node."""
    start, end = module.span(node)
    return Edit(module.path, start, end, text.encode())


def set_keyword(module: Module, call: ast.Call, name: str, text: str) -> Edit:
    """Give a call a keyword argument, or replace the value of the one that it has."""
    for one in call.keywords:
        if one.arg == name:
            return replace_node(module, one.value, text)
    return _add(module, call, f"{name}={text}")


def rename_keyword(module: Module, keyword: ast.keyword, name: str) -> Edit:
    """Rename a keyword argument."""
    start, _ = module.span(keyword)
    return Edit(module.path, start, start + len((keyword.arg or "").encode()), name.encode())


def _add(module: Module, call: ast.Call, text: str) -> Edit:
    words = _words(module, call)
    _, end = module.span(call)
    if not words:
        return Edit(module.path, end - 1, end - 1, text.encode())
    last = words[-1]
    indent = _indent_if_alone(module.source, last.start)
    if indent is None:
        return Edit(module.path, last.end, last.end, b", " + text.encode())
    line_end = _line_end(module.source, last.after_comma or last.end)
    if last.after_comma is not None and line_end < end:
        return Edit(module.path, line_end, line_end, _newline(module.source) + indent + text.encode() + b",")
    return Edit(module.path, last.end, last.end, b"," + _newline(module.source) + indent + text.encode())


def remove_keyword(module: Module, call: ast.Call, name: str) -> Edit | None:
    """Remove a keyword argument with its comma, and its line if it has one of its own; None if it is not there."""
    keyword = next((one for one in call.keywords if one.arg == name), None)
    if keyword is None:
        return None
    start = module.span(keyword)[0]
    words = _words(module, call)
    index = next(place for place, one in enumerate(words) if one.start <= start < one.end)
    word = words[index]
    end = word.after_comma or word.end
    line_end = _line_end(module.source, end)
    if (
        _indent_if_alone(module.source, word.start) is not None
        and not module.source[end:line_end].split(b"#")[0].strip()
    ):
        line_start = _line_start(module.source, word.start)
        return Edit(module.path, line_start, line_end + len(_newline_at(module.source, line_end)), b"")
    if index + 1 < len(words):
        return Edit(module.path, word.start, words[index + 1].start, b"")
    if index:
        return Edit(module.path, words[index - 1].end, word.end, b"")
    return Edit(module.path, word.start, word.end, b"")


def _words(module: Module, call: ast.Call) -> list[_Word]:
    """Return the arguments of a call, with the parentheses around them."""
    begin = module.span(call.func)[1]
    end = module.span(call)[1]
    text = module.source[begin:end]
    offsets = [0]
    for line in text.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    depth = 0
    words: list[_Word] = []
    start: int | None = None
    last = 0
    lines = text.decode().splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text.decode()).readline):
        if token.type in (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT):
            continue
        row, column = token.start
        here = begin + offsets[row - 1] + len(lines[row - 1][:column].encode()) if row <= len(lines) else end
        row_end, column_end = token.end
        after = (
            begin + offsets[row_end - 1] + len(lines[row_end - 1][:column_end].encode())
            if row_end <= len(lines)
            else end
        )
        is_open, is_close = token.string in ("(", "[", "{"), token.string in (")", "]", "}")
        if is_close:
            depth -= 1
        if depth == 0 and is_close:
            break
        if depth == 1 and token.string == ",":
            if start is not None:
                words.append(_Word(start, last, after))
            start = None
        elif depth >= 1:
            start = here if start is None else start
            last = after
        if is_open:
            depth += 1
    if start is not None:
        words.append(_Word(start, last, None))
    return words


def remove_statement(module: Module, node: ast.stmt) -> Edit:
    """Remove a statement; `pass` takes its place if its block has no other."""
    start, end = module.span(node)
    owner = module.parents[node]
    blocks = (getattr(owner, name, None) for name in ("body", "orelse", "finalbody"))
    is_only = any(isinstance(block, list) and block == [node] for block in blocks)
    line_start, line_end = _line_start(module.source, start), _line_end(module.source, end)
    is_alone = (
        not module.source[line_start:start].strip() and not module.source[end:line_end].split(b"#")[0].strip()
    )
    if is_only or not is_alone:
        return Edit(module.path, start, end, b"pass")
    return Edit(module.path, line_start, line_end + len(_newline_at(module.source, line_end)), b"")


def insert_after(module: Module, node: ast.stmt, lines: Iterable[str]) -> Edit:
    """Insert lines after a statement, with its indent."""
    start, end = module.span(node)
    indent = _line_indent(module.source, start)
    newline = _newline(module.source)
    place = _line_end(module.source, end)
    return Edit(module.path, place, place, b"".join(newline + indent + one.encode() for one in lines))


def insert_before(module: Module, node: ast.stmt, lines: Iterable[str]) -> Edit:
    """Insert lines before a statement, with its indent."""
    start, _ = module.span(node)
    place = _line_start(module.source, start)
    indent, newline = _line_indent(module.source, start), _newline(module.source)
    return Edit(module.path, place, place, b"".join(indent + one.encode() + newline for one in lines))


def import_of(module: Module, name: str) -> tuple[Edit, ...]:
    """Import a module at the top of the file, if no statement there does."""
    body = module.tree.body
    if any(
        isinstance(one, ast.Import) and any(a.name == name and not a.asname for a in one.names)
        for one in body
    ):
        return ()
    after = [one for one in body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    first = next(
        (one for one in body if isinstance(one, ast.Import | ast.ImportFrom) and one not in after), None
    )
    if first is not None:
        return (insert_before(module, first, [f"import {name}"]),)
    if after:
        return (insert_after(module, after[-1], [f"import {name}"]),)
    return (insert_before(module, body[0], [f"import {name}"]),)


def statement_of(module: Module, node: ast.AST) -> ast.stmt | None:
    """Return the statement that contains a node."""
    if isinstance(node, ast.stmt):
        return node
    return next((one for one in module.above(node) if isinstance(one, ast.stmt)), None)


def applied(source: bytes, edits: Iterable[Edit]) -> bytes:
    """Return a source after some edits of it. Of two that overlap, the first in the file wins."""
    pieces: list[bytes] = []
    done = 0
    seen: set[Edit] = set()
    for one in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if one in seen or one.start < done:
            continue
        seen.add(one)
        pieces += [source[done : one.start], one.text]
        done = one.end
    return b"".join([*pieces, source[done:]])


def _line_start(source: bytes, place: int) -> int:
    return max(source.rfind(b"\n", 0, place), source.rfind(b"\r", 0, place)) + 1


def _line_end(source: bytes, place: int) -> int:
    ends = [one for one in (source.find(b"\n", place), source.find(b"\r", place)) if one >= 0]
    return min(ends, default=len(source))


def _newline_at(source: bytes, place: int) -> bytes:
    return next((one for one in (b"\r\n", b"\n", b"\r") if source.startswith(one, place)), b"")


def _newline(source: bytes) -> bytes:
    return _newline_at(source, _line_end(source, 0)) or b"\n"


def _line_indent(source: bytes, place: int) -> bytes:
    line = source[_line_start(source, place) : place]
    return line[: len(line) - len(line.lstrip())]


def _indent_if_alone(source: bytes, place: int) -> bytes | None:
    """Return the white space before a place if nothing else is before it in its line."""
    line = source[_line_start(source, place) : place]
    return line if not line.strip() else None
