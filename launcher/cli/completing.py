"""Completion: the possible endings of a word, in the protocol of typer's shell scripts."""

from __future__ import annotations

import os
from typing import Any

from launcher.errors import LaunchError


def _host_names() -> list[str]:
    from launcher.runs import resolve

    return [*resolve.hosts(), *resolve.aliases()]


def _run_ids() -> list[str]:
    from launcher.runs.mirror import run_ids

    return ["last", *run_ids()]


def _profile_names() -> list[str]:
    from launcher.runs.catalogue import files

    return ["auto", *files("profiles")]


def _runtime_names() -> list[str]:
    from launcher.runtimes import names

    return ["auto", *names()]


def _job_names() -> list[str]:
    from launcher.runs.catalogue import files

    return [*files("jobs")]


_NAMES = {
    "HOST": _host_names,
    "PROFILE": _profile_names,
    "JOB": _job_names,
    "RUNTIME": _runtime_names,
    "RUN": _run_ids,
    "RUN…": _run_ids,
    "RUN:PATH": _run_ids,
    "FILE|-|RUN": _run_ids,
}
"""The completions of an argument or option, by its metavar."""


def let_values_complete(group: Any) -> None:
    """Make every option and argument complete its names or choices, in all verbs."""
    for command in group.commands.values():
        if hasattr(command, "commands"):
            let_values_complete(command)
        for param in command.params:
            if param.metavar in _NAMES or param.type_descriptor.is_choice:
                param._custom_shell_complete = _complete  # noqa: SLF001 - a built parameter has no public way


def _complete(_ctx: Any, param: Any, incomplete: str) -> list[str]:
    """Return the completions of a word; none if one of the user's files is invalid, which the command itself reports."""
    try:
        names = _NAMES[param.metavar]() if param.metavar in _NAMES else param.type_descriptor.choices
    except LaunchError:
        return []
    return [f"{_option_prefix()}{name}" for name in names if name.startswith(incomplete)]


def _option_prefix() -> str:
    """Return the `--host=` of a word `--host=la`: zsh and fish replace the whole word."""
    option, is_joined, _ = os.environ.get("_TYPER_COMPLETE_ARGS", "").rpartition(" ")[2].partition("=")
    return f"{option}=" if is_joined and option.startswith("--") else ""


def forget_equals_signs() -> None:
    """Drop the equals sign from `--host = la`, which is how bash splits `--host=la`."""
    if "COMP_WORDS" not in os.environ:
        return
    words, cursor = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
    before = [word for word in words[:cursor] if word != "="]
    os.environ["COMP_WORDS"] = "\n".join([*before, *words[cursor:]])
    os.environ["COMP_CWORD"] = str(cursor - (len(words[:cursor]) - len(before)))
