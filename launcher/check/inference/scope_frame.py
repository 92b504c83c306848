"""A scope of a script while its values are followed: a module, or a function with the arguments of one call."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from launcher.check.inference.value import Value
from launcher.check.reading.module import Module

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


@dataclass(frozen=True, eq=False)
class Frame:
    """A scope. `arguments` are those of the call that is followed; None if no call is known."""

    module: Module
    scope: Scope
    outer: Frame | None = None
    arguments: dict[str, tuple[Value, ...]] | None = field(default=None)

    @property
    def is_function(self) -> bool:
        """Whether the scope is a function or a lambda."""
        return isinstance(self.scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def frame_at(module: Module, node: ast.AST) -> Frame:
    """Return the frame of the scope around a node, with no known call."""
    scopes = [one for one in module.above(node) if isinstance(one, Scope)]
    frame = Frame(module, module.tree)
    for scope in reversed(scopes[:-1]):
        frame = Frame(module, scope, frame)
    return frame
