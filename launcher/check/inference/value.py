"""The values that an expression of a script may have, as far as its source shows them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from launcher.check.reading.module import Module

if TYPE_CHECKING:
    from launcher.check.inference.scope_frame import Frame

Node = ast.expr | ast.stmt | ast.keyword


@dataclass(frozen=True)
class Place:
    """Where a value is written: a node of a module."""

    module: Module
    node: Node


@dataclass(frozen=True)
class Value:
    """A possible value. `at` is where it is written, if one expression does."""

    at: Place | None = field(compare=False, default=None, kw_only=True)


@dataclass(frozen=True)
class Unknown(Value):
    """An unknown value."""


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Const(Value):
    """A constant, or a tuple of constants."""

    value: Any

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Const) and type(other.value) is type(self.value) and other.value == self.value
        )


@dataclass(frozen=True)
class Name(Value):
    """Something of a library by its full name, such as `torch.float16`."""

    name: str


@dataclass(frozen=True, eq=False)
class Made(Value):
    """The result of a call of a library's function or class; `.half` for a method, whose object is `base`."""

    name: str
    call: ast.Call
    frame: Frame
    base: tuple[Value, ...] = ()


@dataclass(frozen=True, eq=False)
class Function(Value):
    """A function of the script, with the object that it is bound to."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    frame: Frame
    bound: Value | None = None


@dataclass(frozen=True, eq=False)
class Class(Value):
    """A class of the script."""

    node: ast.ClassDef
    frame: Frame


@dataclass(frozen=True, eq=False)
class Instance(Value):
    """An object of a class of the script; `call` made it, or a parser of options if None."""

    cls: Class
    call: ast.Call | None
    frame: Frame


@dataclass(frozen=True, eq=False)
class Mapping(Value):
    """A dict: its entries with constant keys; `is_open` if it may have others."""

    entries: dict[str, tuple[Value, ...]]
    is_open: bool = False


@dataclass(frozen=True, eq=False)
class Items(Value):
    """A tuple or a list: the possible values of each item."""

    items: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, eq=False)
class OwnModule(Value):
    """A module of the script's folder."""

    module: Module
