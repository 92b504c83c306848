"""The completions of a word on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launcher.cli.completion.shell_answers import Completion, tell
from launcher.errors import LaunchError


def _host_names() -> list[str]:
    from launcher.config.lookup import Lookup, implicit_names

    return [*dict.fromkeys([*Lookup().names, *implicit_names()])]


def _profile_names() -> list[str]:
    from launcher.config.catalogue import files

    return ["auto", *files("profiles")]


def _runtime_names() -> list[str]:
    from launcher.backends.kinds import RUNTIMES

    return ["auto", *sorted(RUNTIMES)]


def _job_names() -> list[str]:
    from launcher.config.catalogue import files

    return [*files("jobs")]


_NAMES = {
    "HOST": _host_names,
    "[HOST]": _host_names,
    "PROFILE": _profile_names,
    "JOB": _job_names,
    "RUNTIME": _runtime_names,
}
"""The completions of an argument or option, by its metavar."""
_RUNS = {"RUN": "", "[RUN]": "", "RUN…": "", "RUN:PATH": ":", "FILE|-|RUN": ""}
"""The metavars of a run, each with the text after the run's id."""
_SETTING = "KEY=VALUE"


def let_values_complete(group: Any) -> None:
    """Make every option and argument of all commands complete its names or choices. Typed values stay unprocessed.

    typer would validate them with pydantic, which takes longer than the rest, and call their callbacks: `--version` prints.
    """
    for param in group.params:
        param.process_value = _as_typed
    for command in group.commands.values():
        if hasattr(command, "commands"):
            let_values_complete(command)
        for param in command.params:
            param.process_value = _as_typed
            if param.metavar in (*_NAMES, *_RUNS, _SETTING) or param.type_descriptor.is_choice:
                param._custom_shell_complete = _complete  # noqa: SLF001 - typer has no public way for an existing parameter


def _as_typed(_ctx: Any, value: Any) -> Any:
    return value


def _complete(ctx: Any, param: Any, incomplete: str) -> Sequence[Completion]:
    """Return the completions of a word; none if a user's file is invalid. The command itself reports that."""
    try:
        offers = _offers(ctx, param, incomplete)
    except (LaunchError, OSError, ValueError):
        return []
    return tell(offers, incomplete)


def _offers(ctx: Any, param: Any, word: str) -> list[Completion]:
    if param.metavar in _RUNS:
        from launcher.cli.completion.run_words import offered_runs

        given = ctx.params.get(param.name)
        before = given if isinstance(given, list | tuple) else ()
        verb = f"{ctx.info_name} --here" if ctx.params.get("here") else str(ctx.info_name)
        if ":" in word:
            return []
        return [
            offer._replace(value=offer.value + _RUNS[param.metavar])
            for offer in offered_runs(verb, word, before)
        ]
    if param.metavar == _SETTING:
        from launcher.cli.completion.key_words import offered_keys

        return offered_keys(str(ctx.info_name), ctx.params, word)
    names = _NAMES[param.metavar]() if param.metavar in _NAMES else param.type_descriptor.choices
    return [Completion(name) for name in names if name.startswith(word)]
