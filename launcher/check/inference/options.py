"""The options of a script: argparse's, and the dataclasses that HfArgumentParser fills."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from launcher.check.inference.value import UNKNOWN, Class, Const, Instance, Items, Made, Value
from launcher.check.reading.module import Module

if TYPE_CHECKING:
    from launcher.check.inference.infer import Inference
    from launcher.check.inference.scope_frame import Frame

PARSED = (".parse_args", ".parse_known_args")
_INTO_DATACLASSES = ("parse_args_into_dataclasses", "parse_args_and_config", "parse")


def parsed(inference: Inference, call: ast.Call, parser: Value, frame: Frame) -> tuple[Value, ...]:
    """Return the dataclasses that a call of HfArgumentParser or TrlParser fills; empty for any other call."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if not isinstance(parser, Made):
        return ()
    if name in _INTO_DATACLASSES and parser.name.endswith(
        ("HfArgumentParser", "TrlParser", "ArgumentParser")
    ):
        if not parser.call.args:
            return ()
        given = inference.values(parser.call.args[0], parser.frame)
        filled: list[tuple[Value, ...]] = []
        for classes in given[0].items if len(given) == 1 and isinstance(given[0], Items) else (given,):
            one = classes[0] if len(classes) == 1 else UNKNOWN
            filled.append((Instance(one, None, frame),) if isinstance(one, Class) else (UNKNOWN,))
        return (Items(tuple(filled)),)
    if name == "parse_known_args":
        return (Items(((Made(".parse_args", call, frame, (parser,)),), (UNKNOWN,))),)
    return ()


def option(inference: Inference, made: Made, name: str) -> tuple[Value, ...]:
    """Return the values of an option of argparse: of the command line if one is known, else its default."""
    module = made.frame.module
    found: list[Value] = []
    is_changed = any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "set_defaults"
        and any(one.arg == name for one in call.keywords)
        for call, _ in module.calls
    )
    for call, _ in module.calls:
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "add_argument"
            and _destination(call) == name
        ):
            found += _of_option(inference, module, call, name)
    return (UNKNOWN,) if is_changed or not found else tuple(found)


def _of_option(inference: Inference, module: Module, call: ast.Call, name: str) -> tuple[Value, ...]:
    keywords = {one.arg: one.value for one in call.keywords}
    frame = inference.frame(module, call)
    action = keywords.get("action")
    if inference.arguments is not None:
        words = [
            one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        value = given(inference.arguments, name, words)
        if value is not None:
            return (
                (Const(False),)
                if isinstance(action, ast.Constant) and action.value == "store_false"
                else value
            )
    if (
        isinstance(action, ast.Constant)
        and action.value in ("store_true", "store_false")
        and "default" not in keywords
    ):
        return (Const(action.value == "store_false"),)
    if "default" in keywords:
        return inference.values(keywords["default"], frame)
    is_required = "required" in keywords or not _is_option(call)
    return (UNKNOWN,) if is_required else (Const(None),)


def given(arguments: tuple[str, ...], name: str, words: list[str] | None = None) -> tuple[Value, ...] | None:
    """Return the value that a command line gives an option; None if it does not name it."""
    spellings = words or [f"--{name}", f"--{name.replace('_', '-')}"]
    negations = [f"--no-{name.replace('_', '-')}", f"--no-{name}", f"--no_{name}"]
    for place, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option in negations:
            return (Const(False),)
        if option in spellings:
            following = arguments[place + 1] if place + 1 < len(arguments) else ""
            if equals:
                return (_read(value),)
            return (Const(True),) if not following or re.match(r"-\D", following) else (_read(following),)
    return None


def _read(word: str) -> Value:
    if word.lower() in ("true", "false"):
        return Const(word.lower() == "true")
    for convert in (int, float):
        try:
            return Const(convert(word))
        except ValueError:
            continue
    return Const(word)


def _is_option(call: ast.Call) -> bool:
    return any(isinstance(one, ast.Constant) and str(one.value).startswith("-") for one in call.args)


def _destination(call: ast.Call) -> str:
    for one in call.keywords:
        if one.arg == "dest" and isinstance(one.value, ast.Constant):
            return str(one.value.value)
    words = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    long = next((one for one in words if one.startswith("--")), words[0] if words else "")
    return long.lstrip("-").replace("-", "_")
