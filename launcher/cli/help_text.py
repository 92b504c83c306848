"""The layout of `--help`: commands by task, options in groups, each example on a separate line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

EXAMPLES = "Examples:"
"""The text below this line of a docstring is shown unchanged."""
_TYPE = re.compile(r" <([^<>]*)>$")


def usage(params: Sequence[Any], *, command: str) -> list[str]:
    """Return the words after the command's name in a usage line. `command` is the text for the part after `--`."""
    words = ["[OPTIONS]"]
    for param in params:
        if param.opts[0].startswith("-") or param.hidden:
            continue
        name = (param.metavar or param.human_readable_name.upper()).rstrip("…")
        name = name[1:-1] if name.startswith("[") and name.endswith("]") else name
        name = f"{name}…" if param.nargs == -1 else name
        words.append(name if param.required else f"[{name}]")
    return [*words, command] if command else words


def write_text(formatter: Any, docstring: str) -> None:
    """Write a command's description and its examples."""
    text, _, examples = inspect.cleandoc(docstring).partition(f"\n{EXAMPLES}\n")
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(text.strip())
    if examples:
        with formatter.section(EXAMPLES.rstrip(":")):
            for line in inspect.cleandoc(examples).splitlines():
                formatter.write(f"  {line}\n")


def write_commands(formatter: Any, commands: Mapping[str, Any]) -> None:
    """Write the commands under their tasks, in the order of registration, each with its first sentence."""
    tasks: dict[str, list[tuple[str, str]]] = {}
    for name, command in commands.items():
        if not command.hidden:
            task = command.rich_help_panel or "Commands"
            tasks.setdefault(task, []).append((name, _summary(command.help or "")))
    widest = max(len(name) for rows in tasks.values() for name, _ in rows)
    for task, rows in tasks.items():
        with formatter.section(task):
            formatter.write_dl([(name.ljust(widest), summary) for name, summary in rows])


def write_options(formatter: Any, ctx: Any, params: Sequence[Any]) -> None:
    """Write arguments and options under their groups."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for param in params:
        record = param.get_help_record(ctx)
        if record is None:
            continue
        name, words = record
        if not param.opts[0].startswith("-"):
            name = _TYPE.sub("", name).replace("[", "").replace("]", "")
            groups.setdefault("Arguments", []).append((name, words))
        else:
            group = param.rich_help_panel or "Options"
            groups.setdefault(group, []).append((name, words))
    if "Options" in groups:
        groups["Options"] = groups.pop("Options")  # the unnamed group comes last
    for group, rows in groups.items():
        with formatter.section(group):
            formatter.write_dl(rows)


def _summary(docstring: str) -> str:
    """Return the first sentence of a docstring."""
    paragraph = inspect.cleandoc(docstring).partition("\n\n")[0]
    return " ".join(paragraph.split()).partition(". ")[0].rstrip(".")
