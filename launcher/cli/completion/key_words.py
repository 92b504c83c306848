"""The completions after `--set`: the keys of a job, and the values of keys with a fixed set."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launcher.base.toml import TomlTable, read_toml
from launcher.cli.completion.job_keys import ABOUT, RESUMED, TABLES, VALUES
from launcher.cli.completion.shell_answers import Completion
from launcher.errors import LaunchError

_LONGEST = 40
"""Characters of a value that are shown."""


class _Written(NamedTuple):
    """A job's tables as written in its file, and the name of the job or run."""

    tables: Mapping[str, object]
    title: str

    def items(self, name: str) -> list[tuple[str, object]]:
        """Return the keys of a table that `--set` can name, with their values."""
        table = self.tables.get(name)
        pairs = table.items() if isinstance(table, dict) else ()
        return [(key, value) for key, value in pairs if re.fullmatch(r"\w+", key)]


def offered_keys(verb: str, params: Mapping[str, Any], word: str) -> list[Completion]:
    """Return the completions of a word `KEY` or `KEY=VALUE`. `params` are the command's other arguments: they name the job."""
    key, has_value, _ = word.partition("=")
    if has_value:
        return [
            Completion(f"{key}={value}")
            for value in _values(verb, params, key)
            if f"{key}={value}".startswith(word)
        ]
    names = RESUMED if verb == "resume" else ABOUT
    offers = [Completion(f"{name}=", _about(name)) for name in names]
    job = _job(verb, params)
    for table, about in TABLES.items():
        own = [
            Completion(f"{table}.{name}=", f"{about}; {_text(value)} in {job.title}")
            for name, value in job.items(table)
        ]
        offers += own or [Completion(f"{table}.", about)]
    return [offer for offer in offers if offer.value.startswith(word)]


def _about(name: str) -> str:
    return ABOUT[name] + (f": {', '.join(VALUES[name])}" if name in VALUES else "")


def _values(verb: str, params: Mapping[str, Any], key: str) -> tuple[str, ...]:
    if key in VALUES:
        return VALUES[key]
    table, _, name = key.partition(".")
    if table != "settings":
        return ()
    is_flag = isinstance(dict(_job(verb, params).items(table)).get(name), bool)
    return ("true", "false") if is_flag else ()


def _job(verb: str, params: Mapping[str, Any]) -> _Written:
    """Return the job of a command line; an empty one if its file cannot be read. The command itself reports that."""
    try:
        run = params.get("run")
        if isinstance(run, str) and verb in ("resume", "rerun"):
            return _job_of_run(run)
        return _job_of_file(params.get("job"))
    except (LaunchError, OSError, ValueError, RecursionError):
        return _Written({}, "")


def _job_of_run(word: str) -> _Written:
    from launcher.copy.known_runs import files_of, named

    run = named(word)
    return _Written(files_of(run).read_json("plan.json"), run.rpartition("-")[2])


def _job_of_file(named: str | None) -> _Written:
    from launcher.config.catalogue import files

    project = Path("launch.toml")
    name = named or (_toml(project).get("job") if project.is_file() else None) or "sft"
    if not isinstance(name, str):
        return _Written({}, "")
    path = Path(name) if name.endswith(".toml") or "/" in name else files("jobs").get(name)
    return _Written(_toml(path), path.stem) if path and path.is_file() else _Written({}, "")


def _toml(path: Path) -> TomlTable:
    return read_toml(path).tables


def _text(value: object) -> str:
    """Return a value roughly as TOML writes it: `true`, `"auto"`, `1e-05`."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
