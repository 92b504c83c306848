"""Check a job's scripts for known bugs before they are sent."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from launcher.check.checking import Found, check_module, is_concerned
from launcher.check.inference.card_calls import Card
from launcher.check.project import Project
from launcher.check.reading.sources import Sources
from launcher.check.reading.time_limit import TooSlowError, limited
from launcher.planning.script.script import script_of
from launcher.values.job import Job
from launcher.values.plan import Finding
from launcher.values.profile import Profile

_MAX_FILES = 20
_MAX_SHOWN = 3
_MAX_SECONDS = 0.6
"""A launch shows what was found until then, and goes on; a strict one takes more time, and does not."""
_MAX_SECONDS_STRICT = 4.0
_MAX_BYTES = 200_000
"""A larger source is data."""


def findings(job: Job, folder: Path, profile: Profile, *, is_planned: bool) -> list[Finding]:
    """Return the problems of a job's scripts on a card: notes, or refusals if the job's `check` is strict.

    `folder` is the code folder; `is_planned`: the precision comes from the plan, not from the script.
    """
    if job.check == "off":
        return []
    is_strict = job.check == "strict"
    seconds = _MAX_SECONDS_STRICT if is_strict else _MAX_SECONDS
    found, is_whole = problems(job.command, folder, profile, is_planned=is_planned, seconds=seconds)
    level = "refuse" if is_strict else "note"
    shown = [
        Finding.model_validate({"level": level, "code": one.rule.code, **_words(one, profile)})
        for one in found[:_MAX_SHOWN]
    ]
    if len(found) > _MAX_SHOWN:
        mend = f"launch check --profile {profile.name} {shlex.quote(path_of(found[0]))}"
        message = f"{len(found) - _MAX_SHOWN} more problems in the script   {mend}"
        shown.append(Finding(level="note", code="more-problems", message=message, mend=mend))
    if is_strict and not is_whole:
        message = f"the script cannot be checked in {_MAX_SECONDS_STRICT:.0f} s"
        shown.append(Finding(level="refuse", code="not-checked", message=message, mend="--set check=warn"))
    return shown


def problems(
    command: Sequence[str],
    folder: Path,
    profile: Profile,
    *,
    is_planned: bool,
    seconds: float = _MAX_SECONDS,
) -> tuple[list[Found], bool]:
    """Return what `launch check` finds in the scripts of a command, with the options that the command gives them.

    False if that took too long, so that there may be more.
    """
    found: dict[tuple[Path, int, int, str], Found] = {}
    try:
        with limited(seconds):
            _collect(found, command, folder, profile, is_planned=is_planned)
    except (TooSlowError, RecursionError, MemoryError):
        return list(found.values()), False
    return list(found.values()), True


def _collect(
    found: dict[tuple[Path, int, int, str], Found],
    command: Sequence[str],
    folder: Path,
    profile: Profile,
    *,
    is_planned: bool,
) -> None:
    project = Project(folder)
    project.begin()
    arguments = _arguments(command)
    files = (one for one in Sources(folder).files(command) if len(one.source) <= _MAX_BYTES)
    modules = (one for one in files if is_concerned(one.source))
    for module in islice(modules, _MAX_FILES):
        project.add(module)
        for one in check_module(module, project, Card.of(profile), arguments):
            if not (is_planned and one.rule.is_adapted):
                found.setdefault((one.path, one.line, one.column, one.rule.code), one)


def _arguments(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command after its script."""
    script = script_of(command)
    words = [
        os.path.normpath(word) if script is not None and not script.is_module else word for word in command
    ]
    return (
        tuple(command[words.index(script.path) + 1 :]) if script is not None and script.path in words else ()
    )


def _words(found: Found, profile: Profile) -> dict[str, str]:
    mend = mending_command(found, profile)
    return {
        "message": f"{path_of(found)}:{found.line} {found.rule.code}: {found.message}   {mend}",
        "mend": found.mend,
    }


def mending_command(found: Found, profile: Profile) -> str:
    """Return the command that mends a problem on a card, or explains one that a person must mend."""
    if not found.edits:
        return f"launch check --explain {found.rule.code}"
    card = f"--profile {profile.name} " if found.rule.needs_card else ""
    return f"launch check {card}--fix {shlex.quote(path_of(found))}"


def path_of(found: Found) -> str:
    """Return the path of a problem's file as a person types it: relative to the current folder, if it is below it."""
    path = os.path.relpath(found.path)
    return str(found.path) if path.startswith("..") else path
