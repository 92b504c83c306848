"""Parameters, defaults and calls of the functions and classes of a script."""

from __future__ import annotations

import ast

from launcher.check.inference.scope_frame import Scope
from launcher.check.reading.module import Module

_Method = ast.FunctionDef | ast.AsyncFunctionDef


def _spec(scope: Scope) -> ast.arguments | None:
    return None if isinstance(scope, ast.Module | ast.ClassDef) else scope.args


def positional(scope: Scope) -> list[str]:
    """Return the names of a function's parameters that may be given by their place."""
    spec = _spec(scope)
    return [] if spec is None else [one.arg for one in (*spec.posonlyargs, *spec.args)]


def parameters_of(scope: Scope) -> set[str]:
    """Return the names of all parameters of a function."""
    spec = _spec(scope)
    if spec is None:
        return set()
    others = (one.arg for one in (*spec.kwonlyargs, spec.vararg, spec.kwarg) if one is not None)
    return {*positional(scope), *others}


def defaults_of(scope: Scope) -> dict[str, ast.expr]:
    """Return the defaults of a function's parameters."""
    spec = _spec(scope)
    if spec is None:
        return {}
    names = positional(scope)
    found = dict(zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True))
    by_keyword = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    return {**found, **{one.arg: value for one, value in by_keyword if value is not None}}


def methods_of(node: ast.ClassDef) -> list[_Method]:
    """Return the methods that a class itself has."""
    return [one for one in node.body if isinstance(one, _Method)]


def fields_of(node: ast.ClassDef) -> list[str]:
    """Return the names of a dataclass's own fields, in their order."""
    targets = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
    return [one.id for one in targets if isinstance(one, ast.Name)]


def is_dataclass(node: ast.ClassDef) -> bool:
    """Whether a class has fields, and no `__init__` of its own."""
    return bool(fields_of(node)) and not any(one.name == "__init__" for one in methods_of(node))


def keyword_of(call: ast.Call, name: str) -> ast.expr | None:
    """Return the expression of a keyword argument."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def yields(node: _Method) -> bool:
    """Whether a function is a generator."""
    return any(isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(node))


def calls_by_name(module: Module) -> dict[str, list[ast.Call]]:
    """Return the calls of plain names in a module, by the name."""
    found: dict[str, list[ast.Call]] = {}
    for call, _ in module.calls:
        if isinstance(call.func, ast.Name):
            found.setdefault(call.func.id, []).append(call)
    return found
