"""A client's request: a verb and its arguments, checked once and typed; and its answer or refusal.

The arguments of a verb are a NamedTuple, whose field names are those on the wire:

    class Wish(NamedTuple):
        run: RunId
        wish: str

    parse(Wish, "wish", {"run": "0101-sft-w8q2", "wish": "stop"})

If a key cannot be a field's name, like `from`, the field's name has a `_` at the end. An unknown key is
ignored, a null counts as absent, and a wrong value is refused with the argument's name.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Type, TypedDict, TypeVar, Union, cast, get_type_hints

from ..record import strict_json
from ..record.files import REFUSED
from ..record.rundir import RUN_ID
from ..record.strict_json import JsonObject

MAX_PAYLOAD = 256 * 1024 * 1024

Arguments = TypeVar("Arguments")
_WORDS = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


class RequestError(Exception):
    """Raised to refuse a request; `code` is for programs, the text for people, `values` hold details."""

    def __init__(self, code: str, message: str, values: Mapping[str, object] | None = None) -> None:
        """Keep the code, the message and the values."""
        super().__init__(message)
        self.code = code
        self.values = values or {}


class RunId(str):
    """The id of a run, checked: it contains no path."""

    __slots__ = ()


class Refusal(TypedDict):
    """The reason why a verb was refused, as on the wire."""

    code: str
    message: str
    values: Mapping[str, object]


class AgentRequest(NamedTuple):
    """A client's request line, and the size of the payload that follows it."""

    id: Any
    verb: str
    arguments: JsonObject
    size: int


class VerbReply(NamedTuple):
    """The answer of a verb: values for the line, and raw bytes to send after it."""

    values: Mapping[str, object]
    payload: bytes = b""


class NoArguments(NamedTuple):
    """No arguments."""


class RunRequest(NamedTuple):
    """The run that a request is about."""

    run: RunId


def read_request(line: bytes) -> AgentRequest:
    """Return the request in a line. Raises ValueError for any other line; the connection must then end."""
    message = strict_json.decode(line)
    is_object = isinstance(message, dict)
    size = message.get("size", 0) if is_object else None
    arguments = message.get("args") or {} if is_object else None
    if type(size) is not int or not 0 <= size <= MAX_PAYLOAD or not isinstance(arguments, dict):
        raise ValueError("a request needs a size in bounds and arguments by name")
    return AgentRequest(message.get("id"), str(message.get("verb")), arguments, size)


def parse(shape: Type[Arguments], verb: str, values: JsonObject) -> Arguments:
    """Return the arguments of a verb as its NamedTuple. Raises RequestError."""
    defaults = getattr(shape, "_field_defaults", {})
    checked = {}
    for name, hint in get_type_hints(shape).items():
        key = name.rstrip("_")
        value = values.get(key)
        if hint is RunId:
            checked[name] = run_id(value, key)
        elif value is not None:
            checked[name] = _checked(value, hint, "%s: %s" % (verb, key))
        elif name not in defaults:
            raise RequestError("bad-argument", "%s: %s is missing" % (verb, key))
    return shape(**checked)


def run_id(value: Any, key: str) -> RunId:
    """Return the value of a key as the id of a run. Raises RequestError."""
    if not isinstance(value, str) or not RUN_ID.fullmatch(value):
        raise RequestError("bad-run", "%s: %r is not a run id" % (key, value))
    return RunId(value)


def read_object(payload: bytes, what: str) -> JsonObject:
    """Return the JSON object in a payload. Raises RequestError."""
    try:
        value = strict_json.decode(payload)
    except ValueError as error:
        raise RequestError("bad-payload", "%s is not JSON: %s" % (what, error)) from None
    if not isinstance(value, dict):
        raise RequestError("bad-payload", "%s is not a JSON object" % what)
    return cast("JsonObject", value)


def refusal(code: str, text: str, values: Mapping[str, object] | None = None) -> Refusal:
    """Return a refusal as on the wire."""
    return {"code": code, "message": text, "values": values or {}}


def refusal_of(error: Union[RequestError, OSError], root: str) -> Refusal:
    """Return an error as a refusal. A system error without a path is reported for the root."""
    if isinstance(error, RequestError):
        return refusal(error.code, str(error), error.values)
    path = error.filename or root
    if error.errno in REFUSED:
        return refusal(REFUSED[error.errno], path)
    return refusal("os", "%s: %s" % (path, error.strerror))


def _checked(value: Any, hint: Any, where: str) -> Any:
    if getattr(hint, "__origin__", None) is Union:  # Optional
        hint = next(inner for inner in hint.__args__ if inner is not type(None))
    if hint is Any:
        return value
    kind = getattr(hint, "__origin__", hint)
    if isinstance(kind, type) and issubclass(kind, dict):  # also for a TypedDict, which has no instances
        kind = dict
    is_right = isinstance(value, (int, float) if kind is float else kind)
    if not is_right or (isinstance(value, bool) and kind is not bool):
        raise RequestError("bad-argument", "%s must be %s, not %r" % (where, _WORDS[kind], value))
    if kind is list:
        return [_checked(item, hint.__args__[0], where + ": each item") for item in value]
    return value
