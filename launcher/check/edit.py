"""Changes of a source, as replaced bytes: all else keeps its comments and its layout."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.check.inference.value import Place
from launcher.check.reading.module import Module
from launcher.check.reading.positions import BOM
from launcher.check.reading.time_limit import tick

_BEFORE_ARGUMENTS = re.compile(rb"(?:[\s\\)]|#[^\r\n]*)*")
"""What may stand between a called expression and the parenthesis of its arguments, as in `(torch.load)("x")`."""
_LONE_CR = re.compile(rb"\r(?!\n)")


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
    written = re.match(r"\w*", module.source[start:].decode(errors="ignore"))  # ligatures: longer than `arg`
    return Edit(module.path, start, start + len(written[0].encode() if written else b""), name.encode())


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
    line_end = _line_end(module.source, last.end)
    comment = module.source[last.end : line_end]
    if line_end >= end or not comment.lstrip().startswith(b"#"):
        line_end, comment = last.end, b""
    new = b"," + comment + _newline(module.source) + indent + text.encode()
    return Edit(module.path, last.end, line_end, new)


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
        has_comment = module.source[end : words[index + 1].start].strip()
        return Edit(module.path, word.start, end if has_comment else words[index + 1].start, b"")
    if index and module.source[words[index - 1].end : word.start].strip() == b",":
        return Edit(module.path, words[index - 1].end, word.end, b"")
    return Edit(module.path, word.start, end, b"")


def _words(module: Module, call: ast.Call) -> list[_Word]:
    """Return the arguments of a call, with the parentheses around them."""
    tick()
    begin, end = module.span(call.func)[1], module.span(call)[1]
    before = _BEFORE_ARGUMENTS.match(module.source, begin)
    begin = before.end() if before is not None else begin
    # the tokenizer and `lines` must agree on lines: Python ends none at a form feed or U+2028
    text = _LONE_CR.sub(b"\n", module.source[begin:end]).decode()
    lines = text.split("\n")
    starts = [begin]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()) + 1)

    def offset(place: tuple[int, int]) -> int:
        row, column = place
        return starts[row - 1] + len(lines[row - 1][:column].encode()) if row <= len(lines) else end

    depth = 0
    words: list[_Word] = []
    start: int | None = None
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text, newline="\n").readline):
        if token.type in (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT):
            continue
        here, after = offset(token.start), offset(token.end)
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
    if is_only or not (_begins_line(module.source, start) and _ends_line(module.source, end)):
        return Edit(module.path, start, end, b"pass")
    return Edit(module.path, line_start, line_end + len(_newline_at(module.source, line_end)), b"")


def insert_after(module: Module, node: ast.stmt, lines: Sequence[str]) -> tuple[Edit, ...]:
    """Insert lines after a statement, with its indent; a single one into its line, if the statement has not its own."""
    start, end = module.span(node)
    if not (_begins_line(module.source, start) and _ends_line(module.source, end)):
        is_simple = len(lines) == 1 and not hasattr(node, "body")
        return (Edit(module.path, end, end, f"; {lines[0]}".encode()),) if is_simple else ()
    indent = _line_indent(module.source, start)
    newline = _newline(module.source)
    place = _line_end(module.source, end)
    return (Edit(module.path, place, place, b"".join(newline + indent + one.encode() for one in lines)),)


def insert_before(module: Module, node: ast.stmt, line: str) -> tuple[Edit, ...]:
    """Insert a line before a simple statement, with its indent; into its line, if the statement has not its own."""
    start, _ = module.span(node)
    if hasattr(node, "body"):
        return ()
    if not _begins_line(module.source, start):
        return (Edit(module.path, start, start, f"{line}; ".encode()),)
    place = _line_start(module.source, start)
    indent, newline = _line_indent(module.source, start), _newline(module.source)
    return (Edit(module.path, place, place, indent + line.encode() + newline),)


def import_of(module: Module, name: str, at: ast.expr | ast.stmt | ast.keyword) -> tuple[Edit, ...] | None:
    """Import a module at the top of the file, if no statement there does before `at`; None if the name means another thing."""
    body = module.tree.body
    if _is_bound_otherwise(module, name):
        return None
    if any(
        isinstance(one, ast.Import)
        and any(a.name == name and not a.asname for a in one.names)
        and one.lineno < at.lineno
        for one in body
    ):
        return ()
    after = [one for one in body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    first = next(
        (one for one in body if isinstance(one, ast.Import | ast.ImportFrom) and one not in after), None
    )
    if first is not None:
        return insert_before(module, first, f"import {name}")
    if after or ast.get_docstring(module.tree, clean=False) is not None:
        return insert_after(module, after[-1] if after else body[0], [f"import {name}"])
    place = _line_start(module.source, module.span(body[0])[0])
    new = f"import {name}".encode() + _newline(module.source)
    return (Edit(module.path, place, place, new),)


def _is_bound_otherwise(module: Module, name: str) -> bool:
    """Whether a source gives a name to anything but the module of that name."""
    for node in module.nodes:
        match node:
            case ast.Name(id=bound, ctx=ast.Store() | ast.Del()) | ast.arg(arg=bound):
                is_bound = bound == name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler():
                is_bound = node.name == name
            case ast.Import(names=names):
                is_bound = any(one.asname == name and one.name != name for one in names)
            case ast.ImportFrom(names=names):
                is_bound = any((one.asname or one.name) == name for one in names)
            case _:
                is_bound = False
        if is_bound:
            return True
    return False


def text_alone(module: Module, node: ast.expr) -> str:
    """Return the source of an expression as it can stand in place of one around it, in parentheses if needed."""
    text = module.source[slice(*module.span(node))].decode()
    is_whole = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.List | ast.Dict)
    has_breaks = "\n" in text or "\r" in text
    return text if is_whole and (not has_breaks or isinstance(node, ast.Call)) else f"({text})"


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
    mark = len(BOM) if source.startswith(BOM) else 0
    return max(source.rfind(b"\n", 0, place) + 1, source.rfind(b"\r", 0, place) + 1, mark)


def _begins_line(source: bytes, place: int) -> bool:
    """Whether a place is the first of its logical line."""
    start = _line_start(source, place)
    return not source[start:place].strip() and not source[:start].rstrip(b"\r\n").endswith(b"\\")


def _ends_line(source: bytes, place: int) -> bool:
    return not source[place : _line_end(source, place)].split(b"#")[0].strip()


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
