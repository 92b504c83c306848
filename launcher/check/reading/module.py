"""A parsed Python source: its tree, the names that it imports, and the place of each node in its bytes."""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from launcher.check.reading.positions import BOM, Lines
from launcher.check.reading.time_limit import tick

_ONE_AT_A_TIME = threading.Lock()


def python_tree(source: str | bytes) -> ast.Module | None:
    """Return the tree of a source, or `None` if it is not Python.

    One thread parses at a time, because the items of a batch start in threads. CPython 3.11 counts the depth
    of a tree for all threads together, and may raise `SystemError: AST constructor recursion depth mismatch`
    (seen; python/cpython issue 106905).
    """
    try:
        return parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def parse(source: str | bytes) -> ast.Module:
    """Return the tree of a source.

    Raises:
        SyntaxError: it is not Python.
        ValueError, RecursionError, MemoryError: it has a null byte, or is nested too deeply.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an escape such as "\d": the source is not ours
        return ast.parse(source)


class Module:
    """One parsed source. `name` is its path for people: below the code folder, or as given on a command line.

    `can_change`: the file has the bytes of `source`, so that edits can be applied to it. `installs`: the text with its
    `pip install` lines, if that is not the source.
    """

    def __init__(
        self,
        name: str,
        tree: ast.Module,
        source: bytes = b"",
        path: Path = Path(),
        *,
        can_change: bool = True,
        installs: str | None = None,
    ) -> None:
        self.name = name
        self._installs = installs
        self.path = path
        self.can_change = can_change
        self.tree = tree
        self.source = source
        self.nodes = [*ast.walk(tree)]

    @classmethod
    def of(cls, name: str, source: bytes, path: Path = Path()) -> Module | None:
        """Parse a source; return `None` if it is not Python."""
        tree = python_tree(source)
        return None if tree is None else cls(name, tree, source, path)

    @property
    def text(self) -> str:
        """The source as text, with a mark in place of bytes that are not UTF-8."""
        return self.source.decode(errors="replace")

    @property
    def installs(self) -> str:
        """The text in which `pip install` lines stand: the source's, of a notebook the whole file's."""
        return self.text if self._installs is None else self._installs

    @cached_property
    def imports(self) -> dict[str, str]:
        """The full name of each imported name; a relative import begins with its dots."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for one in node.names:
                    first = one.name.partition(".")[0]
                    names[one.asname or first] = one.name if one.asname else first
            elif isinstance(node, ast.ImportFrom):
                package = "." * node.level + (f"{node.module}." if node.module else "")
                names.update({one.asname or one.name: f"{package}{one.name}" for one in node.names})
        return names

    def full_name(self, node: ast.AST) -> str:
        """Return the full name of an expression, by the imports of this file; empty if it is not an imported name."""
        if isinstance(node, ast.Name):
            name = self.imports.get(node.id, "") if isinstance(node.ctx, ast.Load) else ""
            return "" if name.startswith(".") else name
        if isinstance(node, ast.Attribute) and (holder := self.full_name(node.value)):
            return f"{holder}.{node.attr}"
        return ""

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """Each call with the full name of what is called; empty for a name that is not imported."""
        return [(node, self.full_name(node.func)) for node in self.nodes if isinstance(node, ast.Call)]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node above each node."""
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, the nearest first."""
        tick()
        while (up := self.parents.get(node)) is not None:
            yield up
            node = up

    @cached_property
    def attributes_set(self) -> dict[str, list[tuple[ast.expr, ast.expr]]]:
        """The assignments to attributes: by the attribute's name, each object's expression with the value's."""
        found: dict[str, list[tuple[ast.expr, ast.expr]]] = {}
        for node in self.nodes:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Attribute) and isinstance(node, ast.Assign):
                    found.setdefault(target.attr, []).append((target.value, node.value))
        return found

    @cached_property
    def lines(self) -> Lines:
        """The lines of the source."""
        return Lines(self.source)

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """Return the first byte of a node in the source, and the byte after its last one."""
        last, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._offset(node.lineno, node.col_offset), self._offset(last, end)

    def _offset(self, line: int, column: int) -> int:
        """Return a byte of the source by a place of the parser, which does not count a byte order mark."""
        mark = len(BOM) if line == 1 and self.source.startswith(BOM) else 0
        return self.lines.offset(line - 1) + column + mark
