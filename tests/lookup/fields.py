"""A model's keys as a reader looks them up: name, accepted values, default, and the docstring below the field."""

import ast
import functools
import inspect
import re
import textwrap
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ByteSize, TypeAdapter

from launcher.base.toml import inline


class Key(NamedTuple):
    """A key of a table: its accepted values, its default ("" without one) and its meaning."""

    name: str
    values: str
    default: str
    meaning: str


@functools.cache
def docstrings(one: type) -> dict[str, str]:
    """Return the docstring below each field of a class, in one line; the fields of its bases are included."""
    found: dict[str, str] = {}
    for base in reversed(one.__mro__):
        if not base.__module__.startswith("launcher."):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for field, below in zip(node.body, node.body[1:], strict=False):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = " ".join(text.split())
    return found


def keys(model: type[BaseModel], prefix: str = "", *, skip: tuple[str, ...] = ()) -> list[Key]:
    """Return the keys of a table; those of an inner table follow in its place, as `batch.global`.

    Raises AssertionError for a field without a docstring.
    """
    properties = TypeAdapter(model).json_schema(mode="validation")
    found = []
    for name, field in model.model_fields.items():
        if name in skip:
            continue
        key = prefix + (field.serialization_alias or name)
        inner = _table(field.annotation)
        if inner is not None and name not in ("slurm", "run"):  # these have a section
            found += keys(inner, f"{key}.")
            continue
        assert name in docstrings(model), f"{model.__name__}.{name} needs a docstring below it"
        schema = properties["properties"][field.serialization_alias or name]
        is_open = schema.get("type") == "object" or name == "slurm"
        default = "required" if field.is_required() else _default(field.default)
        words = values(schema, properties.get("$defs", {}))
        found.append(Key(f"{key}.*" if is_open else key, words, default, docstrings(model)[name]))
    return found


def _table(annotation: Any) -> type[BaseModel] | None:
    """Return the model of an inner table, None for another value."""
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _default(value: object) -> str:
    if value is None or value in ((), {}):
        return ""
    if isinstance(value, ByteSize):
        return f'`"{re.sub(r"[.]0(?=[A-Z])", "", value.human_readable(decimal=True))}"`'
    return f"`{value:g}`" if isinstance(value, float) else f"`{inline(value)}`"


def values(schema: dict[str, Any], defs: dict[str, Any] | None = None) -> str:
    """Return the values that a JSON Schema accepts, in words: `whole number, 1 or more`.

    `defs` are the definitions for a file's keys, where null is no value. Without them, an object is a link.
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#type-{name.lower()})" if defs is None else values(defs[name], defs)
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        words = [values(one, defs) for one in parts if defs is None or one.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "enum" in schema or "const" in schema:
        *first, last = [f"`{inline(one)}`" for one in schema.get("enum", [schema.get("const")])]
        return f"{', '.join(first)} or {last}" if first else last
    kind = schema.get("type")
    if kind == "array":
        return (
            f"list of {values(schema['items'], defs).replace('table', 'tables')}"
            if schema.get("items")
            else "list"
        )
    if kind in ("integer", "number"):
        return ", ".join(filter(None, ("whole number" if kind == "integer" else "number", _limits(schema))))
    return {"string": "text", "boolean": "`true` or `false`", "null": "null", "object": "table"}.get(
        str(kind), "any"
    )


def _limits(schema: dict[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        return f"{least:g} to {most:g}"
    words = [
        f"{least:g} or more" if least is not None else "",
        f"above {schema['exclusiveMinimum']:g}" if "exclusiveMinimum" in schema else "",
        f"at most {most:g}" if most is not None else "",
    ]
    return ", ".join(filter(None, words))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table; `|` in its cells is escaped, and outside of code `*` and `<` too."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(_cell(cell) for cell in row) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


def _cell(text: str) -> str:
    parts = text.replace("|", "\\|").split("`")
    return "`".join(
        part if number % 2 else part.replace("*", "\\*").replace("<", "&lt;")
        for number, part in enumerate(parts)
    )
