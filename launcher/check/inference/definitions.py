"""Find the assignments whose value a name may have at a place: walk the statements before it, backward."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from launcher.check.inference.scope_frame import Scope
from launcher.check.reading.module import Module
from launcher.check.reading.time_limit import tick

_IN_PLACE = (
    "half", "float", "double", "bfloat16", "to", "cuda", "cpu", "type",
    "gradient_checkpointing_enable", "enable_input_require_grads", "add_adapter",
)  # fmt: skip
"""Methods that change a model itself: the statement `model.half()` counts as `model = model.half()`."""

Test = Callable[[ast.expr], bool | None]
"""The value of a condition; None if it is unknown."""


class Definition(NamedTuple):
    """A statement that gives a name its value: `value`, or the item at `item` of it. None: a value that is unknown."""

    value: ast.expr | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None
    item: int | None = None


class Reaching(NamedTuple):
    """The definitions that may reach a place; `is_complete` if one of them certainly did."""

    found: list[Definition]
    is_complete: bool


def path_of(node: ast.AST) -> str:
    """Return the text of a name such as `self.model` or `config['fp16']`; empty for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr) if holder := path_of(value):
            return f"{holder}.{attr}"
        case ast.Subscript(value=value, slice=ast.Constant(value=str() as key)) if holder := path_of(value):
            return f"{holder}[{key!r}]"
    return ""


def assigned_paths(module: Module) -> frozenset[str]:
    """Return all names, attributes and items that a module assigns."""
    stored = (
        one.id for one in module.nodes if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)
    )
    caught = (one.name for one in module.nodes if isinstance(one, ast.ExceptHandler) and one.name)
    defined = (
        path for node in module.nodes if isinstance(node, ast.stmt) for path, _ in _definitions_of(node)
    )
    return frozenset((*stored, *caught, *defined))


def reaching(module: Module, path: str, at: ast.AST, scope: Scope, test: Test) -> Reaching:
    """Return the definitions of `path` that may reach the node `at` in a scope."""
    tick()
    found: list[Definition] = []
    node = at
    while node is not scope:
        owner = module.parents.get(node)
        if owner is None:
            break
        if isinstance(node, ast.stmt) and (block := _block_with(owner, node)):
            if _in_block(block[: block.index(node)], path, test, found):
                return Reaching(found, is_complete=True)
            if isinstance(owner, ast.For | ast.AsyncFor | ast.While) and block is owner.body:
                _in_block(block[block.index(node) :], path, test, found)
        if owner is not scope and _by_owner(owner, node, path, found):
            return Reaching(found, is_complete=True)
        node = owner
    return Reaching(found, is_complete=False)


def at_the_end(body: list[ast.stmt], path: str, test: Test) -> Reaching:
    """Return the definitions of `path` that may hold after some statements."""
    found: list[Definition] = []
    return Reaching(found, is_complete=_in_block(body, path, test, found))


def _block_with(owner: ast.AST, node: ast.stmt) -> list[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(owner, name, None)
        if isinstance(block, list) and any(one is node for one in block):
            return block
    return []


def _by_owner(owner: ast.AST, node: ast.AST, path: str, found: list[Definition]) -> bool:
    """Add what the head of a compound statement around the place defines; return whether that is `path`."""
    if isinstance(owner, ast.For | ast.AsyncFor) and node in owner.body:
        if path in {name for name, _ in _targets(owner.target, None)}:
            found.append(Definition(None))
            return True
    elif isinstance(owner, ast.With | ast.AsyncWith) and isinstance(node, ast.stmt):
        for name, definition in _of_with(owner):
            if name == path:
                found.append(definition)
                return True
    elif isinstance(owner, ast.ExceptHandler) and owner.name == path:
        found.append(Definition(None))
        return True
    elif isinstance(owner, ast.comprehension | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        generators = [owner] if isinstance(owner, ast.comprehension) else owner.generators
        if any(path in {name for name, _ in _targets(one.target, None)} for one in generators):
            found.append(Definition(None))
            return True
    return False


def _in_block(block: list[ast.stmt], path: str, test: Test, found: list[Definition]) -> bool:
    """Collect the definitions in some statements, the last first; return whether one of them is certain."""
    tick()
    return any(_in_statement(one, path, test, found) for one in reversed(block))


@lru_cache(maxsize=50_000)
def _paths_in(node: ast.stmt) -> frozenset[str]:
    """Return the names that a statement, or one within it, defines."""
    found = {name for name, _ in _definitions_of(node)}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return frozenset(found)
    if isinstance(node, ast.For | ast.AsyncFor):
        found.update(name for name, _ in _targets(node.target, None))
    elif isinstance(node, ast.With | ast.AsyncWith):
        found.update(name for name, _ in _of_with(node))
    elif isinstance(node, ast.If):
        found.update(one.target.id for one in ast.walk(node.test) if isinstance(one, ast.NamedExpr))
    for one in ast.iter_child_nodes(node):
        inner = one.body if isinstance(one, ast.ExceptHandler | ast.match_case) else [one]
        found.update(name for child in inner if isinstance(child, ast.stmt) for name in _paths_in(child))
    return frozenset(found)


def _in_statement(node: ast.stmt, path: str, test: Test, found: list[Definition]) -> bool:
    if path not in _paths_in(node):
        return False
    match node:
        case ast.If():
            known = test(node.test)
            in_body = known is not False and _in_block(node.body, path, test, found)
            in_else = known is not True and _in_block(node.orelse, path, test, found)
            ends = _leaves(node.body) or _leaves(node.orelse)
            is_certain = (in_body or known is False) and (in_else or known is True)
            return is_certain or (ends and (in_body or in_else)) or _walrus(node.test, path, found)
        case ast.For() | ast.AsyncFor() | ast.While():
            _in_block(node.orelse, path, test, found)
            _in_block(node.body, path, test, found)
            if not isinstance(node, ast.While) and path in {one for one, _ in _targets(node.target, None)}:
                found.append(Definition(None))
            return False
        case ast.With() | ast.AsyncWith():
            if _in_block(node.body, path, test, found):
                return True
            own = [definition for name, definition in _of_with(node) if name == path]
            found += own
            return bool(own)
        case ast.Try():
            if _in_block(node.finalbody, path, test, found) or _in_block(node.orelse, path, test, found):
                return True
            for handler in node.handlers:
                if not _leaves(handler.body):
                    _in_block(handler.body, path, test, found)
            return _in_block(node.body, path, test, found)
        case ast.Match():
            for case in node.cases:
                _in_block(case.body, path, test, found)
            return False
    own = [definition for name, definition in _definitions_of(node) if name == path]
    found += own
    return bool(own)


def _leaves(block: list[ast.stmt]) -> bool:
    """Whether nothing after some statements is executed."""
    return bool(block) and isinstance(block[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _walrus(node: ast.expr, path: str, found: list[Definition]) -> bool:
    own = [
        Definition(one.value)
        for one in ast.walk(node)
        if isinstance(one, ast.NamedExpr) and one.target.id == path
    ]
    found += own
    return bool(own)


def _of_with(node: ast.With | ast.AsyncWith) -> Iterator[tuple[str, Definition]]:
    for item in node.items:
        if item.optional_vars is not None:
            yield from _targets(item.optional_vars, item.context_expr)


@lru_cache(maxsize=50_000)
def _definitions_of(node: ast.stmt) -> tuple[tuple[str, Definition], ...]:
    """Return the names that a simple statement defines."""
    return tuple(_defined_by(node))


def _defined_by(node: ast.stmt) -> Iterator[tuple[str, Definition]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _targets(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _targets(target, value)
        case ast.AugAssign(target=target):
            yield path_of(target), Definition(None)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, Definition(node)
        case ast.Expr(value=ast.Call() as call):
            yield from _by_call(call)
        case ast.Delete(targets=targets):
            for target in targets:
                yield path_of(target), Definition(None)
    if (
        isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return)
        and node.value is not None
    ):
        for one in ast.walk(node.value):
            if isinstance(one, ast.NamedExpr):
                yield one.target.id, Definition(one.value)


def _by_call(call: ast.Call) -> Iterator[tuple[str, Definition]]:
    """Yield what a call as a statement changes: a model by `.half()`, a dict by `.update(…)`, an object by `setattr`."""
    if isinstance(call.func, ast.Attribute) and (holder := path_of(call.func.value)):
        if call.func.attr in _IN_PLACE:
            yield holder, Definition(call)
        elif call.func.attr == "update":
            yield from _by_update(holder, call)
    elif isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3:
        holder, key = path_of(call.args[0]), call.args[1]
        if holder and isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield f"{holder}.{key.value}", Definition(call.args[2])


def _by_update(holder: str, call: ast.Call) -> Iterator[tuple[str, Definition]]:
    pairs: Iterable[tuple[object, ast.expr]] = [(one.arg, one.value) for one in call.keywords]
    for argument in call.args:
        if isinstance(argument, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in argument.keys]
            pairs = [*pairs, *zip(keys, argument.values, strict=True)]
        else:
            pairs = [*pairs, (None, argument)]
    for key, value in pairs:
        yield (
            (f"{holder}[{key!r}]", Definition(value))
            if isinstance(key, str)
            else (f"{holder}[*]", Definition(None))
        )


def _targets(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, Definition]]:
    """Yield the names in the target of an assignment."""
    if isinstance(target, ast.Tuple | ast.List):
        is_plain = not any(isinstance(one, ast.Starred) for one in target.elts)
        for index, one in enumerate(target.elts):
            inner = one.value if isinstance(one, ast.Starred) else one
            if path := path_of(inner):
                yield path, Definition(value if is_plain else None, index if is_plain else None)
            elif isinstance(inner, ast.Tuple | ast.List):
                yield from _targets(inner, None)
    elif path := path_of(target):
        yield path, Definition(value)
