"""Turn the user's TOML into frozen values. Each error names file, key, value and the change to make."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from launcher.errors import BadFileError, UnknownNameError

Model = TypeVar("Model", bound=BaseModel)
Advice = Callable[[str, str], str]
"""Takes an unknown key and the usual suggestion for it. Returns the text to show in place of the list of keys."""

MAX_MEANT = 3
"""The maximum number of suggestions for an unknown name."""
_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}

_NOT_IN_TABLES = ("name", "slurm")
"""Fields that are not keys of a value's table: the table's name, and values derived from the keys."""


def build(
    model: type[Model],
    data: Mapping[str, Any],
    *,
    file: str,
    text: str = "",
    prefix: str = "",
    unoffered: Container[str] = (),
    advise: Advice | None = None,
) -> Model:
    """Build a value from the tables of `file`; `prefix` is the table that contains it, e.g. `hosts.lambda.`.

    The error for an unknown key does not suggest the `unoffered` keys, because they would be refused.
    `advise` makes the suggestion for an unknown key outside all tables. Types are strict: text is not
    accepted as a number. Raises BadFileError that names every wrong key.
    """
    try:
        return model.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        lines = [
            _explain(mistake, model, file, text, prefix, unoffered, advise) for mistake in error.errors()
        ]
        raise BadFileError("\n".join(dict.fromkeys(lines))) from error


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `: did you mean 'x'?` for the nearest known word, else an empty text."""
    by_letters = {name.casefold(): name for name in known}
    match = difflib.get_close_matches(word.casefold(), by_letters, n=1)
    return f": did you mean '{by_letters[match[0]]}'?" if match else ""


def unknown_name(
    noun: str, word: str, known: Iterable[str], *, looked_in: str, meant: Sequence[str] = ()
) -> UnknownNameError:
    """Return the error for an unknown name.

    It lists all known names, and suggests the `meant` ones, else the nearest.
    """
    names = sorted(set(known))
    listing = f"\n  known: {', '.join(names)}" if names else ""
    proposed = " or ".join(f"'{name}'" for name in meant[:MAX_MEANT])
    guess = f": did you mean {proposed}?" if proposed else nearest(word, names)
    return UnknownNameError(f"unknown {noun} '{word}' ({looked_in}){guess}{listing}")


def _explain(
    error: Any,
    model: type[BaseModel],
    file: str,
    text: str,
    prefix: str,
    unoffered: Container[str],
    advise: Advice | None,
) -> str:
    parts = [part for part in error["loc"] if part != "[key]"]
    is_table = [
        isinstance(part, int) and part is not parts[-1] and f"[[{parts[0]}]]" in text for part in parts
    ]
    where = [str(part + 1) if is_in else str(part) for part, is_in in zip(parts, is_table, strict=True)]
    if where[:1] == ["settings"] and len(where) > 2:  # pydantic adds the tags of a union to the location
        return f"{file}: settings.{where[1]}: expected text, a finite number, true or false"
    key = prefix + ".".join(where[:1] if where[:1] == ["checkpointing"] else where)
    line = line_near(key, text)
    place = f"   (line {line})" if line else ""
    if error["type"] == "extra_forbidden":
        hidden = (*_NOT_IN_TABLES,) if prefix else ()
        table = _table_of(model, where[:-1])
        known = [] if table is None else _keys(table)
        allowed = [name for name in known if name not in hidden and (len(where) > 1 or name not in unoffered)]
        guess = nearest(where[-1], allowed)
        if (hint := table and getattr(table, "hints", {}).get(where[-1])) is not None:
            guess = f": write   {hint}"
        elif advise is not None and len(where) == 1:
            return f"{file}: unknown key '{key}'{advise(key, guess)}"
        return f"{file}: unknown key '{key}'{guess}{place}\n  allowed: {', '.join(allowed)}"
    if error["type"] == "missing":
        return f"{file}: '{key}' is missing"
    if where[:1] == ["secrets"]:  # the input may be a secret value
        return f'{file}: secrets: expected a list of names of variables, as in secrets = ["HF_TOKEN"]{place}'
    if error["type"] in ("credential", "variable"):  # its value may be a secret, and is not repeated
        return f"{file}: {key} {error['msg']}{place}"
    shown = json.dumps(error["input"], default=str, ensure_ascii=False)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    if where[:1] == ["checkpointing"]:  # pydantic reports one error for each part of a union
        return f'{file}: {key} = {shown}: expected true, false or "auto"{place}'
    if error["type"] in _WORDS:
        return (
            f"{file}: {key} = {shown}: expected {_WORDS[error['type']]}, got {_kind(error['input'])}{place}"
        )
    subject = f"{key} = {shown}: " if where else f"{key.rstrip('.')}: " if key else ""
    said = error["msg"].removeprefix("Value error, ")
    return f"{file}: {subject}{said[:1].lower()}{said[1:]}{place}"


def _kind(value: Any) -> str:
    for kind, word in (
        (bool, "true or false"),
        (str, "text"),
        (int, "a whole number"),
        (float, "a fraction"),
    ):
        if isinstance(value, kind):
            return word
    return "a list" if isinstance(value, list) else "a table" if isinstance(value, dict) else "nothing"


def _table_of(model: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    """Return the model of a table within a model; None if the path leads to no table."""
    for part in path:
        if part.isdigit():  # the number of a table in a list
            continue
        field = model.model_fields.get(part)
        inner = field.annotation if field else None
        if get_origin(inner) is tuple:
            inner = get_args(inner)[0]
        if get_origin(inner) in (UnionType, Union):  # an optional field
            inner = get_args(inner)[0]
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return None
        model = inner
    return model


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.serialization_alias or name for name, field in model.model_fields.items()]


def line_near(dotted: str, text: str) -> int | None:
    """Return the line of a dotted key, or else of the nearest table above it; None if neither is found.

    The table's line is the answer for an inline table, whose keys have no line each.
    """
    while dotted:
        if line := line_of(dotted, text):
            return line
        dotted = dotted.rpartition(".")[0]
    return None


def line_of(dotted: str, text: str) -> int | None:
    """Return the line on which a dotted key is written, by its table header and its last part; None if not found.

    A key contains the number of its table in a list, from 1: `run.2.name` is in the second `[[run]]`, and
    `run.2` is its header.
    """
    table, _, key = dotted.rpartition(".")
    current = ""
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.fullmatch(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(#.*)?", line):
            current = re.sub(r"[\s\"']", "", header[2])
            if header[1] == "[[":
                counts[current] = counts.get(current, 0) + 1
            for name, count in counts.items():
                if current == name or current.startswith(f"{name}."):
                    current = f"{name}.{count}{current.removeprefix(name)}"
                    break
            if current == dotted:
                return number
        elif found := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            written = re.sub(r"[\"']", "", found[1])
            full = f"{current}.{written}" if current else written
            if full == dotted or (current == table and written == key):
                return number
    return None
