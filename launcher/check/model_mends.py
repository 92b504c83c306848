"""Mends of a model's type that several rules share."""

from __future__ import annotations

import ast

from launcher.check.edit import Edit, remove_statement, replace, statement_of, text_alone
from launcher.check.inference.value import Place
from launcher.check.training_script import Model


def to_float32(model: Model) -> tuple[Edit, ...]:
    """Return the edits that make a model's parameters float32, where their type is written; empty if that is unclear."""
    return () if model.dtype_at is None else with_type(model.dtype_at, "float32")


def upcast_lines(model: str) -> list[str]:
    """Return the statements that make a model's trainable parameters float32; `model` is its name in the script."""
    return [
        f"for parameter in {model}.parameters():",
        "    if parameter.requires_grad:",
        "        parameter.data = parameter.data.float()",
    ]


def with_type(place: Place, name: str) -> tuple[Edit, ...]:
    """Return the edits that write another type in the place of one: of `torch.float16`, `"float16"`, `.half()`, a variable."""
    module, node = place.module, place.node
    match node:
        case ast.Constant(value=str()):
            quote = module.source[slice(*module.span(node))].decode()[-1]
            return (replace(place, f"{quote}{name}{quote}"),)
        case ast.Attribute():
            holder = module.source[slice(*module.span(node.value))].decode()
            return (replace(place, f"{holder}.{name}"),)
        case ast.Call(func=ast.Attribute(value=value)) if name == "float32":
            statement = statement_of(module, node)
            if isinstance(statement, ast.Expr) and statement.value is node:
                return (remove_statement(module, statement),)
            return (replace(place, text_alone(module, value)),)
        case ast.Name() | ast.IfExp() | ast.Subscript() | ast.Call(func=ast.Name()) | ast.BoolOp():
            imported = (one for top in module.tree.body if isinstance(top, ast.Import) for one in top.names)
            torch = next((one.asname or one.name for one in imported if one.name == "torch"), None)
            if torch is not None:
                return (replace(place, f"{torch}.{name}"),)
            up = module.parents.get(node)
            is_moved = (
                isinstance(up, ast.Call) and isinstance(up.func, ast.Attribute) and up.func.attr == "to"
            )
            return () if is_moved else (replace(place, f'"{name}"'),)  # `.to("float32")` would be a device
    return ()
