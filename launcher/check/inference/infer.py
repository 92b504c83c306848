"""Determine the possible values of an expression of a script."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache

from launcher.check.inference import definitions, options
from launcher.check.inference.card_calls import Card, value_of_card
from launcher.check.inference.definitions import Definition, Test, path_of
from launcher.check.inference.operations import NOTHING, Values, compared, converted, distinct, merged, truth
from launcher.check.inference.scope_frame import Frame, Scope, frame_at
from launcher.check.inference.signature import (
    calls_by_name,
    defaults_of,
    fields_of,
    is_dataclass,
    keyword_of,
    methods_of,
    parameters_of,
    positional,
    yields,
)  # fmt: skip
from launcher.check.inference.value import (
    UNKNOWN,
    Class,
    Const,
    Function,
    Instance,
    Items,
    Made,
    Mapping,
    Name,
    OwnModule,
    Place,
    Unknown,
    Value,
)  # fmt: skip
from launcher.check.reading.module import Module
from launcher.check.reading.time_limit import tick

Find = Callable[[Module, str], Module | None]
"""Return the module of the script's folder that an import in a module names; None if it is a library."""

_MAX_TEXT = 10_000
"""Characters of a text that is followed."""
_MAX_DEPTH = 40
_MAX_STEPS = 20_000
"""Expressions that are looked at for one script. A script that needs more has unknown values."""


class Inference:
    """Determines values of expressions for one card and one command line.

    `arguments` are the words of a launch after the script; None if the script is checked by itself, where each
    option has its default.
    """

    def __init__(self, card: Card, find: Find, arguments: tuple[str, ...] | None = None) -> None:
        self.card = card
        self.arguments = arguments
        self._find = find
        self._steps = 0
        self._active: set[tuple[int, int]] = set()
        self._assigned = cache(definitions.assigned_paths)
        self._calls_by_name = cache(calls_by_name)
        self._known: dict[tuple[ast.expr, Frame], Values] = {}
        self._cuts = 0
        self._looked_up: set[tuple[Module, str]] = set()
        self._frames: dict[ast.AST, Frame] = {}
        self._entered: dict[tuple[ast.AST, ast.AST | None, Frame], Frame] = {}

    def values(self, node: ast.expr, frame: Frame) -> Values:
        """Return the possible values of an expression in a frame; `(UNKNOWN,)` if nothing is known."""
        tick()
        key = (node, frame)
        if key in self._known:
            return self._known[key]
        active = (id(node), id(frame))
        self._steps += 1
        if active in self._active or len(self._active) > _MAX_DEPTH or self._steps > _MAX_STEPS:
            self._cuts += 1
            return NOTHING
        cuts = self._cuts
        self._active.add(active)
        try:
            found = distinct(self._values(node, frame))
        finally:
            self._active.discard(active)
        if self._cuts == cuts or not self._active:  # else a circle or a limit shortened it, here only
            self._known[key] = found
        return found

    def frame(self, module: Module, node: ast.AST) -> Frame:
        """Return the frame around a node, with no known call."""
        scope = next((one for one in module.above(node) if isinstance(one, Scope)), module.tree)
        if scope not in self._frames:
            self._frames[scope] = frame_at(module, node)
        return self._frames[scope]

    def at(self, module: Module, node: ast.expr) -> Values:
        """Return the possible values of an expression where it stands, by the calls of the function around it."""
        return self.values(node, self.frame(module, node))

    def definitions(self, node: ast.expr, frame: Frame) -> list[ast.expr]:
        """Return the expressions that a name was given in its scope."""
        path = path_of(node)
        reached = (
            definitions.reaching(frame.module, path, node, frame.scope, self._test_in(frame)).found
            if path
            else []
        )
        return [one.value for one in reached if isinstance(one.value, ast.expr)]

    def own_module(self, module: Module, name: str) -> Module | None:
        """Return the module of the script's folder that an import names; None for a library."""
        return self._find(module, name)

    def test(self, node: ast.expr, frame: Frame) -> bool | None:
        """Return whether a condition holds; None if it is unknown."""
        truths = {truth(one) for one in self.values(node, frame)}
        return truths.pop() if len(truths) == 1 else None

    # expressions

    def _values(self, node: ast.expr, frame: Frame) -> Values:
        match node:
            case ast.Constant(value=value):
                return (Const(value, at=Place(frame.module, node)),)
            case ast.Name(id=name):
                return self._named(name, node, frame)
            case ast.Attribute():
                return self._attribute(node, frame)
            case ast.Call():
                return self._call(node, frame)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                known = self.test(test, frame)
                taken = [one for one, side in ((body, True), (orelse, False)) if known in (None, side)]
                return tuple(value for one in taken for value in self.values(one, frame))
            case ast.BoolOp(op=op, values=operands):
                return self._either(isinstance(op, ast.Or), operands, frame)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                known = self.test(operand, frame)
                return NOTHING if known is None else (Const(not known),)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return (Const(-number, at=Place(frame.module, node)),)
            case ast.Compare(left=left, ops=[ast.In()], comparators=[right]) if self._is_argv(right, frame):
                words = self.values(left, frame)
                return tuple(
                    Const(one.value in (self.arguments or ())) if isinstance(one, Const) else UNKNOWN
                    for one in words
                )
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return compared(op, self.values(left, frame), self.values(right, frame))
            case ast.Dict():
                return (self._mapping(node, frame),)
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                if any(isinstance(one, ast.Starred) for one in items):
                    return NOTHING
                return (Items(tuple(self.values(one, frame) for one in items), at=Place(frame.module, node)),)
            case ast.Subscript(value=value, slice=ast.Constant(value=int() as index)) if self._is_argv(
                value, frame
            ):
                given = self.arguments or ()
                return (
                    (Const(given[index - 1], at=Place(frame.module, node)),)
                    if 0 < index <= len(given)
                    else NOTHING
                )
            case ast.Subscript():
                return self._item(node, frame)
            case ast.JoinedStr(values=parts):
                return self._text(parts, frame)
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.values(value, frame)
            case ast.Lambda():
                return (Function(node, frame),)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                both = [*self.values(left, frame), *self.values(right, frame)]
                return (merged(both),) if all(isinstance(one, Mapping) for one in both) else NOTHING
        return NOTHING

    @staticmethod
    def _is_argv(node: ast.expr, frame: Frame) -> bool:
        return frame.module.full_name(node) == "sys.argv"

    def _either(self, is_or: bool, operands: list[ast.expr], frame: Frame) -> Values:
        found: list[Value] = []
        for operand in operands:
            values = self.values(operand, frame)
            truths = {truth(one) for one in values}
            if truths == {is_or} or operand is operands[-1]:
                return (*found, *values)
            if truths != {not is_or}:
                found += [one for one in values if truth(one) is not (not is_or)]
        return tuple(found)

    def _mapping(self, node: ast.Dict, frame: Frame) -> Mapping:
        entries: dict[str, Values] = {}
        is_open = False
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                inner = self.values(value, frame)
                mapping = inner[0] if len(inner) == 1 else UNKNOWN
                if isinstance(mapping, Mapping):
                    entries.update(mapping.entries)
                    is_open = is_open or mapping.is_open
                else:
                    is_open = True
            else:
                names = self.values(key, frame)
                if len(names) == 1 and isinstance(names[0], Const):
                    entries[str(names[0].value)] = self.values(value, frame)
                else:
                    is_open = True
        return Mapping(entries, is_open, at=Place(frame.module, node))

    def _text(self, parts: list[ast.expr], frame: Frame) -> Values:
        words = []
        for part in parts:
            values = self.values(part.value if isinstance(part, ast.FormattedValue) else part, frame)
            if len(values) != 1 or not isinstance(values[0], Const) or isinstance(values[0].value, float):
                return NOTHING
            words.append(str(values[0].value))
            if sum(map(len, words)) > _MAX_TEXT:
                return NOTHING
        return (Const("".join(words)),)

    # names

    def _named(self, name: str, node: ast.expr, frame: Frame) -> Values:
        found: Values = ()
        if name in self._assigned(frame.module):
            here = definitions.reaching(frame.module, name, node, frame.scope, self._test_in(frame))
            found = self._of_definitions(here.found, frame)
            if here.is_complete:
                return found
        if frame.is_function and name in parameters_of(frame.scope):
            return (*found, *self._argument(name, frame))
        return found or self._global(name, frame)

    def _global(self, name: str, frame: Frame) -> Values:
        """Return the values of a name that the frame's own scope does not define."""
        outer = frame.outer
        is_assigned = name in self._assigned(frame.module)
        while outer is not None:
            if is_assigned and not isinstance(outer.scope, ast.ClassDef | ast.Lambda):
                reached = definitions.at_the_end(outer.scope.body, name, self._test_in(outer))
                if reached.found:
                    return self._of_definitions(reached.found, outer)
            if outer.is_function and name in parameters_of(outer.scope):
                return self._argument(name, outer)
            outer = outer.outer
        return self._imported(name, frame.module)

    def _imported(self, name: str, module: Module) -> Values:
        full = module.imports.get(name)
        if full is None:
            return (Name(f"builtins.{name}"),)
        own = self._find(module, full)
        if own is not None:
            return (OwnModule(own),)
        package, _, last = full.rpartition(".")
        holder = self._find(module, package or full[: len(full) - len(last)]) if last != full else None
        if holder is not None:
            return self.member_of_module(holder, last)
        return NOTHING if full.startswith(".") else (Name(full),)

    def member_of_module(self, module: Module, name: str) -> Values:
        """Return the values of a global name of a module of the script."""
        if (module, name) in self._looked_up:
            return NOTHING  # modules that import each other
        frame = self.frame(module, module.tree)
        self._looked_up.add((module, name))
        try:
            reached = definitions.at_the_end(module.tree.body, name, self._test_in(frame))
            return self._of_definitions(reached.found, frame) or self._imported(name, module)
        finally:
            self._looked_up.discard((module, name))

    def _of_definitions(self, found: list[Definition], frame: Frame) -> Values:
        return tuple(value for one in found for value in self._of_definition(one, frame))

    def _of_definition(self, definition: Definition, frame: Frame) -> Values:
        match definition.value:
            case None:
                return NOTHING
            case ast.FunctionDef() | ast.AsyncFunctionDef() as node:
                return (Function(node, frame),)
            case ast.ClassDef() as node:
                return (Class(node, frame),)
            case expression:
                values = self.values(expression, frame)
        if definition.item is None:
            return values
        return tuple(inner for one in values for inner in self._nth(one, definition.item))

    def _nth(self, value: Value, index: int) -> Values:
        """Return an item of an unpacked value. `accelerator.prepare(model, optimizer)` returns its arguments."""
        if isinstance(value, Items):
            return value.items[index] if -len(value.items) <= index < len(value.items) else NOTHING
        if isinstance(value, Const) and isinstance(value.value, tuple) and index < len(value.value):
            return (Const(value.value[index]),)
        if isinstance(value, Made) and value.name == ".prepare" and index < len(value.call.args):
            inner = self.values(value.call.args[index], value.frame)
            return (Made(".prepare", value.call, value.frame, inner, at=value.at),)
        return NOTHING

    def _test_in(self, frame: Frame) -> Test:
        return lambda node: self.test(node, frame)

    def _argument(self, name: str, frame: Frame) -> Values:
        """Return the values of a parameter: of the call that is followed, or of all calls that the module shows."""
        if frame.arguments is not None:
            return frame.arguments.get(name) or self._default(name, frame)
        scope = frame.scope
        if isinstance(scope, ast.Lambda):
            return NOTHING
        if frame.outer is not None and isinstance(frame.outer.scope, ast.ClassDef):
            if name == _first(scope):
                cls = Class(frame.outer.scope, frame.outer.outer or Frame(frame.module, frame.module.tree))
                return (Instance(cls, self._only_call(frame, frame.outer.scope.name), cls.frame),)
            return NOTHING
        calls = self._calls_by_name(frame.module).get(getattr(scope, "name", ""), [])
        found: list[Value] = []
        for call in calls:
            around = self.frame(frame.module, call)
            bound = self._bind(scope, call, around, None)
            if bound is None:
                return NOTHING
            found += bound.get(name) or self._default(name, frame)
        return tuple(found) if calls else self._default(name, frame)

    def _only_call(self, frame: Frame, name: str) -> ast.Call | None:
        calls = self._calls_by_name(frame.module).get(name, [])
        return calls[0] if len(calls) == 1 else None

    def _default(self, name: str, frame: Frame) -> Values:
        default = defaults_of(frame.scope).get(name)
        outer = frame.outer or frame
        return NOTHING if default is None else self.values(default, outer)

    # attributes and items

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Values:
        path = path_of(node)
        found: Values = ()
        if path and path in self._assigned(frame.module):
            reached = definitions.reaching(frame.module, path, node, frame.scope, self._test_in(frame))
            found = self._of_definitions(reached.found, frame)
            if reached.is_complete:
                return found
        full = frame.module.full_name(node)
        if full and not found and self._find(frame.module, full) is None:
            base = self.values(node.value, frame)
            if all(isinstance(one, Name) for one in base):
                return tuple(
                    Name(f"{one.name}.{node.attr}", at=Place(frame.module, node))
                    for one in base
                    if isinstance(one, Name)
                )
        members = [value for one in self.values(node.value, frame) for value in self.member(one, node.attr)]
        at = Place(frame.module, node)
        return (*found, *(Name(one.name, at=at) if isinstance(one, Name) else one for one in members))

    def member(self, holder: Value, name: str) -> Values:
        """Return the values of an attribute of a value."""
        match holder:
            case Name(name=full):
                return (Name(f"{full}.{name}"),)
            case OwnModule(module=module):
                return self.member_of_module(module, name)
            case Instance() | Class():
                return self._of_object(holder, name)
            case Mapping() if holder.entries.get(name):  # an object made of a dict, as by SimpleNamespace
                return holder.entries[name]
            case Made():
                return self._of_made(holder, name)
        return NOTHING

    def _of_made(self, made: Made, name: str) -> Values:
        if made.name == "torch.device" and name == "type" and made.call.args:
            kinds = self.values(made.call.args[0], made.frame)
            return tuple(
                Const(one.value.partition(":")[0])
                if isinstance(one, Const) and isinstance(one.value, str)
                else UNKNOWN
                for one in kinds
            )
        if made.name.endswith(options.PARSED):
            return options.option(self, made, name)
        keyword = next((one.value for one in made.call.keywords if one.arg == name), None)
        if keyword is not None and made.name[:1].isalpha():
            return self.values(keyword, made.frame)
        return (Name(f"{made.name}().{name}"),) if made.name[:1].isalpha() else NOTHING

    def _of_object(self, holder: Instance | Class, name: str, depth: int = 0) -> Values:
        cls = holder.cls if isinstance(holder, Instance) else holder
        found: list[Value] = []
        inside = self._enter(cls.node, None, cls.frame, None)
        if isinstance(holder, Instance):
            if given := self._given_field(holder, name):
                return given
            if holder.call is None and self.arguments is not None:
                given_option = options.given(self.arguments, name)
                if given_option is not None:
                    return given_option
            for method in methods_of(cls.node):
                frame = self._method_frame(method, holder, inside)
                own = _first(method)
                if own and f"{own}.{name}" in self._assigned(cls.frame.module):
                    reached = definitions.at_the_end(method.body, f"{own}.{name}", self._test_in(frame))
                    found += self._of_definitions(reached.found, frame)
        if found:
            return tuple(found)
        reached = definitions.at_the_end(cls.node.body, name, self._test_in(inside))
        for one in reached.found:
            found += self._class_member(one, holder, inside)
        if found or depth > 5:
            return tuple(found) or NOTHING
        for base in cls.node.bases:
            for value in self.values(base, cls.frame):
                if isinstance(value, Class):
                    under = (
                        Instance(value, holder.call, holder.frame) if isinstance(holder, Instance) else value
                    )
                    inherited = self._of_object(under, name, depth + 1)
                    if inherited != NOTHING:
                        return inherited
        return NOTHING

    def _given_field(self, holder: Instance, name: str) -> Values:
        """Return the values that a call of a dataclass gives a field; empty if the field has its default."""
        fields = fields_of(holder.cls.node)
        if holder.call is None or not is_dataclass(holder.cls.node) or name not in fields:
            return ()
        place = fields.index(name)
        if place < len(holder.call.args):
            return self.values(holder.call.args[place], holder.frame)
        given = self.keywords(holder.call, holder.frame)
        return given.get(name) or given.get("**", ())

    def _class_member(self, definition: Definition, holder: Instance | Class, inside: Frame) -> Values:
        node = definition.value
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {path_of(one).rpartition(".")[2] for one in node.decorator_list}
            bound = None if "staticmethod" in names else holder
            method = Function(node, inside, bound)
            return (
                self._returned(method, None, inside) if names & {"property", "cached_property"} else (method,)
            )
        if isinstance(node, ast.Call) and path_of(node.func).rpartition(".")[2] in ("field", "Field"):
            default = keyword_of(node, "default") or (node.args[0] if node.args else None)
            if default is not None:
                return self.values(default, inside)
            factory = keyword_of(node, "default_factory")
            made = self.values(factory, inside) if factory is not None else ()
            return (
                self._returned(made[0], None, inside)
                if len(made) == 1 and isinstance(made[0], Function)
                else NOTHING
            )
        return self._of_definition(definition, inside)

    def _method_frame(
        self, method: ast.FunctionDef | ast.AsyncFunctionDef, holder: Instance, inside: Frame
    ) -> Frame:
        own = _first(method)
        bound: dict[str, Values] = {own: (holder,)} if own else {}
        if method.name == "__init__" and holder.call is not None:
            given = self._bind(method, holder.call, holder.frame, holder)
            if given is not None:
                bound.update(given)
        elif method.name != "__init__":
            return self._enter(method, None, inside, None)
        return self._enter(method, holder.call, inside, bound)

    def _enter(
        self, scope: Scope, call: ast.Call | None, outer: Frame, arguments: dict[str, Values] | None
    ) -> Frame:
        """Return the frame of a scope for a call; the same frame each time, so that circles are seen."""
        key = (scope, call, outer)
        if key not in self._entered:
            self._entered[key] = Frame(outer.module, scope, outer, arguments)
        return self._entered[key]

    def _item(self, node: ast.Subscript, frame: Frame) -> Values:
        path = path_of(node)
        if path and path in self._assigned(frame.module):
            reached = definitions.reaching(frame.module, path, node, frame.scope, self._test_in(frame))
            if reached.is_complete:
                return self._of_definitions(reached.found, frame)
        found: list[Value] = []
        keys = self.values(node.slice, frame)
        for holder in self.values(node.value, frame):
            for key in keys:
                found += self._item_of(holder, key, node.value, frame)
        return tuple(found) or NOTHING

    def _item_of(self, holder: Value, key: Value, written: ast.expr, frame: Frame) -> Values:
        if not isinstance(key, Const):
            return NOTHING
        if isinstance(holder, Mapping):
            return self.entry(holder, str(key.value), written, frame) or NOTHING
        if isinstance(key.value, int) and not isinstance(key.value, bool):
            return self._nth(holder, key.value)
        return NOTHING

    def entry(self, mapping: Mapping, key: str, written: ast.expr, frame: Frame) -> Values | None:
        """Return the values of a dict's key, also by assignments to it after the dict was made; None if it lacks it."""
        path = path_of(written)
        assigned = self._assigned(frame.module)
        if path and f"{path}[{key!r}]" in assigned:
            reached = definitions.reaching(
                frame.module, f"{path}[{key!r}]", written, frame.scope, self._test_in(frame)
            )
            later = self._of_definitions(reached.found, frame)
            if later:
                return later if reached.is_complete else (*later, *mapping.entries.get(key, ()))
        if path and f"{path}[*]" in assigned:
            return NOTHING
        return mapping.entries.get(key) or (NOTHING if mapping.is_open else None)

    # calls

    def _call(self, node: ast.Call, frame: Frame) -> Values:
        at = Place(frame.module, node)
        found: list[Value] = []
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            for holder in self.values(node.func.value, frame):
                if isinstance(holder, Made | Unknown | Instance | Items) and not self._is_own_method(
                    holder, name
                ):
                    found += options.parsed(self, node, holder, frame) or (
                        Made(f".{name}", node, frame, (holder,), at=at),
                    )
                elif isinstance(holder, Const | Mapping):
                    found += self._of_constant(holder, name, node, frame)
                else:
                    found += [
                        value for one in self.member(holder, name) for value in self._called(one, node, frame)
                    ]
            return tuple(found) or NOTHING
        for called in self.values(node.func, frame):
            found += self._called(called, node, frame)
        return tuple(found) or NOTHING

    def _is_own_method(self, holder: Value, name: str) -> bool:
        return isinstance(holder, Instance) and any(
            isinstance(one, Function) for one in self._of_object(holder, name)
        )

    def _of_constant(self, holder: Const | Mapping, name: str, node: ast.Call, frame: Frame) -> Values:
        """Return the result of a method of a text or a dict."""
        if isinstance(holder, Mapping):
            if name == "get" and node.args:
                keys = self.values(node.args[0], frame)
                written = node.func.value if isinstance(node.func, ast.Attribute) else node
                default = self.values(node.args[1], frame) if len(node.args) > 1 else (Const(None),)
                if len(keys) == 1 and isinstance(keys[0], Const):
                    return self.entry(holder, str(keys[0].value), written, frame) or default
            return (holder,) if name == "copy" else NOTHING
        arguments = [self.values(one, frame) for one in node.args]
        plain = [one[0].value for one in arguments if len(one) == 1 and isinstance(one[0], Const)]
        if isinstance(holder.value, str) and len(plain) == len(arguments) and name in _OF_TEXT:
            if not _is_short(name, holder.value, plain):
                return NOTHING
            try:
                return (Const(getattr(holder.value, name)(*plain)),)
            except (TypeError, ValueError, LookupError):
                return NOTHING
        return NOTHING

    def _called(self, called: Value, node: ast.Call, frame: Frame) -> Values:
        match called:
            case Function():
                return self._returned(called, node, frame)
            case Class():
                return (Instance(called, node, frame, at=Place(frame.module, node)),)
            case Name(name=name):
                return self._of_library(name, node, frame)
        return NOTHING

    def _returned(self, function: Function, call: ast.Call | None, frame: Frame) -> Values:
        node = function.node
        arguments = self._bind(node, call, frame, function.bound) if call is not None else {}
        if arguments is None:
            return NOTHING
        if call is None and function.bound is not None and (own := _first(node)):
            arguments = {own: (function.bound,)}
        inside = self._called_frame(function, call, frame, arguments)
        if isinstance(node, ast.Lambda):
            return self.values(node.body, inside)
        if isinstance(node, ast.AsyncFunctionDef) or yields(node):
            return NOTHING
        found = [value for one in self._returns(node.body, inside) for value in self._of_return(one, inside)]
        return tuple(found) or (Const(None),)

    def _called_frame(
        self, function: Function, call: ast.Call | None, frame: Frame, arguments: dict[str, Values]
    ) -> Frame:
        """Return the frame of a call; the same one for the same call from the same frame."""
        key = (function.node, call, frame if call is not None else function.frame)
        if key not in self._entered:
            self._entered[key] = Frame(function.frame.module, function.node, function.frame, arguments)
        return self._entered[key]

    def _of_return(self, node: ast.Return, frame: Frame) -> Values:
        return (Const(None),) if node.value is None else self.values(node.value, frame)

    def _returns(self, block: list[ast.stmt], frame: Frame) -> Iterator[ast.Return]:
        """Yield the return statements that a call may reach."""
        for one in block:
            if isinstance(one, ast.Return):
                yield one
                return
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if isinstance(one, ast.If):
                known = self.test(one.test, frame)
                if known is not False:
                    yield from self._returns(one.body, frame)
                    if known and one.body and isinstance(one.body[-1], ast.Return):
                        return
                if known is not True:
                    yield from self._returns(one.orelse, frame)
                continue
            for name in ("body", "orelse", "finalbody"):
                yield from self._returns(getattr(one, name, []), frame)
            for inner in (*getattr(one, "handlers", []), *getattr(one, "cases", [])):
                yield from self._returns(inner.body, frame)

    def _bind(
        self, scope: Scope, call: ast.Call, frame: Frame, bound: Value | None
    ) -> dict[str, Values] | None:
        """Return the arguments of a call by the names of parameters; None if its words do not show them."""
        names = positional(scope)
        given: dict[str, Values] = {}
        if bound is not None and names:
            given[names.pop(0)] = (bound,)
        for one in call.args:
            if isinstance(one, ast.Starred):
                return None
            if names:
                given[names.pop(0)] = self.values(one, frame)
        return {**given, **self.keywords(call, frame)}

    def keywords(self, call: ast.Call, frame: Frame) -> dict[str, Values]:
        """Return the keyword arguments of a call, with those of `**mapping`; `**` stands for unknown ones."""
        found: dict[str, Values] = {}
        for one in call.keywords:
            if one.arg is not None:
                found[one.arg] = self.values(one.value, frame)
                continue
            for holder in self.values(one.value, frame):
                if isinstance(holder, Mapping):
                    assigned = self._assigned(frame.module)
                    path = path_of(one.value)
                    later = {
                        word[len(path) + 2 : -2] for word in assigned if path and word.startswith(f"{path}['")
                    }
                    for key in {*holder.entries, *later}:
                        entry = self.entry(holder, key, one.value, frame)
                        if entry is not None:
                            found[key] = (*found.get(key, ()), *entry) if key in found else entry
                    if holder.is_open or (path and f"{path}[*]" in assigned):
                        found["**"] = NOTHING
                else:
                    found["**"] = NOTHING
        return found

    def _of_library(self, name: str, node: ast.Call, frame: Frame) -> Values:
        known = value_of_card(name, node, self.card)
        if known is not None:
            return (known,)
        at = Place(frame.module, node)
        match name.removeprefix("builtins."), node.args:
            case "getattr", [holder, key, *default]:
                keys = self.values(key, frame)
                if len(keys) == 1 and isinstance(keys[0], Const):
                    member = [
                        v for one in self.values(holder, frame) for v in self.member(one, str(keys[0].value))
                    ]
                    return tuple(member) or (self.values(default[0], frame) if default else NOTHING)
                return NOTHING
            case (("dict" | "types.SimpleNamespace"), []):
                entries = self.keywords(node, frame)
                return (Mapping({k: v for k, v in entries.items() if k != "**"}, "**" in entries, at=at),)
            case (("dict" | "copy.deepcopy" | "copy.copy" | "vars" | "dataclasses.asdict"), [inner]):
                values = self.values(inner, frame)
                return (
                    values
                    if all(isinstance(one, Mapping) for one in values)
                    else (Made(name, node, frame, values, at=at),)
                )
            case ("int" | "float" | "str" | "bool") as convert, [inner]:
                values = self.values(inner, frame)
                return tuple(converted(convert, one) for one in values)
        return (Made(name, node, frame, at=at),)


_OF_TEXT = ("lower", "upper", "strip", "startswith", "endswith", "replace", "format", "lstrip", "rstrip")


def _is_short(name: str, text: str, arguments: list[object]) -> bool:
    """Whether the result of a text's method is certainly short: a width in `format`, or `replace`, may make gigabytes."""
    words = [text, *(one for one in arguments if isinstance(one, str))]
    if any(len(one) > _MAX_TEXT for one in words):
        return False
    if name == "replace" and len(arguments) > 1:
        return text.count(str(arguments[0])) * len(str(arguments[1])) <= _MAX_TEXT
    return name != "format" or re.search(r"\{[^{}]*[:.\[]|\{[^{}]*\{", text) is None


def _first(scope: Scope) -> str:
    """Return the name of a method's own object."""
    return next(iter(positional(scope)), "")
