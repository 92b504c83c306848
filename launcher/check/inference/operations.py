"""Operations on possible values: truth, comparison, conversion."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from launcher.check.inference.value import (
    UNKNOWN,
    Class,
    Const,
    Function,
    Instance,
    Items,
    Mapping,
    Name,
    OwnModule,
    Value,
)  # fmt: skip

Values = tuple[Value, ...]
"""The possible values of one expression."""
NOTHING: Values = (UNKNOWN,)
"""The values of an expression of which nothing is known."""
_MAX_VALUES = 12
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_CONVERTED: dict[str, Callable[[Any], object]] = {"int": int, "float": float, "str": str, "bool": bool}
_HOST = {"sys.platform": "linux", "os.name": "posix"}
"""Facts about the host of a training."""
_ALIASES = {"torch.half": "torch.float16", "torch.float": "torch.float32"}


def distinct(values: Values) -> Values:
    """Return values without repetitions; `NOTHING` for none, or for too many."""
    found: list[Value] = []
    for one in values:
        if one not in found:
            found.append(one)
    return tuple(found) if 0 < len(found) <= _MAX_VALUES else NOTHING


def truth(value: Value) -> bool | None:
    """Return whether a value is true; None if that is unknown."""
    match value:
        case Const(value=constant):
            return bool(constant)
        case Mapping(entries=entries, is_open=is_open):
            return bool(entries) or (None if is_open else False)
        case Items(items=items):
            return bool(items)
        case Function() | Class() | Instance() | OwnModule():
            return True
    return None


def compared(op: ast.cmpop, left: Values, right: Values) -> Values:
    """Return the results of a comparison of each left value with each right one."""
    return tuple(
        _compared(_COMPARED.get(type(op)), _plain(one), _plain(other)) for one in left for other in right
    )


def _compared(
    compare: Callable[[Any, Any], object] | None, one: tuple[object] | None, other: tuple[object] | None
) -> Value:
    if compare is None or one is None or other is None:
        return UNKNOWN
    try:
        return Const(bool(compare(one[0], other[0])))
    except TypeError:
        return UNKNOWN


def _plain(value: Value) -> tuple[object] | None:
    """Return a value that can be compared, in a tuple of one."""
    if isinstance(value, Const):
        return (value.value,)
    if isinstance(value, Name) and value.name in _HOST:
        return (_HOST[value.name],)
    if isinstance(value, Name) and value.name.startswith("torch.") and "()" not in value.name:
        return (_ALIASES.get(value.name, value.name),)
    if isinstance(value, Items):
        items = [_plain(one[0]) if len(one) == 1 else None for one in value.items]
        return None if None in items else (tuple(one[0] for one in items if one is not None),)
    return None


def converted(name: str, value: Value) -> Value:
    """Return the result of `int`, `float`, `str` or `bool`."""
    if not isinstance(value, Const):
        return UNKNOWN
    try:
        return Const(_CONVERTED[name](value.value), at=value.at)
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN


def merged(mappings: list[Value]) -> Mapping:
    """Return the dict of several, of which a later one has precedence."""
    entries: dict[str, Values] = {}
    for one in mappings:
        if isinstance(one, Mapping):
            entries.update(one.entries)
    return Mapping(entries, any(isinstance(one, Mapping) and one.is_open for one in mappings))
