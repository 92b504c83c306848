"""The completions of a run: the runs that the command can act on, by their last state known here."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from launcher.cli.completion.shell_answers import Completion, asking_shell

if TYPE_CHECKING:
    from launcher.copy.known_runs import KnownRun

_LAST_LETTERS = 4
"""Length of a run id's last letters, by which a run can be named."""
_ACTS_ON: dict[str, Callable[[KnownRun], bool]] = {
    "stop": lambda run: not run.has_ended,
    "forward": lambda run: not run.is_freed,
    "resume": lambda run: run.has_ended and not run.is_freed,
    "recover": lambda run: not run.has_ended,
    "rm": lambda run: run.has_ended and not run.is_freed,
    "rm --here": lambda run: run.has_ended,
    "pull": lambda run: not run.is_freed,
    "cp": lambda run: not run.is_freed,
    "exec": lambda run: not run.is_freed,
    "shell": lambda run: not run.is_freed,
}
"""The runs that a command can act on. A command missing here can act on any run."""


def offered_runs(verb: str, word: str, before: Collection[str] = ()) -> list[Completion]:
    """Return the runs that match a word, the newest first, without those named `before` it.

    A word is the start of an id, of its last part or of its name, or else the start of its last four letters. If the id or
    its last part starts with the word, the completion does too. Raises OSError or UsageError if no runs can be read.
    """
    from launcher.copy.known_runs import known_runs

    acts_on = _ACTS_ON.get(verb, _any)
    known = known_runs(lambda run: bool(_forms(run, word)))
    known = known or known_runs(lambda run: bool(word) and _last_letters(run).startswith(word))
    taken = {*before} & {form for run in known for form in (run.run, run.short)}
    offers = [
        Completion(_forms(run.run, word) or run.short, _about(run))
        for run in known
        if acts_on(run) and not taken & {run.run, run.short}
    ]
    return [*_last(acts_on, word, before), *offers]


def _any(_run: KnownRun) -> bool:
    return True


def _last(acts_on: Callable[[KnownRun], bool], word: str, before: Collection[str]) -> list[Completion]:
    """Return the word `last` if it matches `word` and the command can act on the newest run."""
    from launcher.copy.known_runs import known_runs

    if before or not "last".startswith(word):
        return []
    newest = known_runs(lambda _: True)[:1]
    return [Completion("last", f"{run.short}  {_about(run)}") for run in newest if acts_on(run)]


def _forms(run: str, word: str) -> str:
    """Return the form of an id that starts with the word: the complete id or its last part; empty if neither does."""
    short = run.rpartition("-")[2]
    if run.startswith(word):
        return run
    if short.startswith(word):
        return short
    if run.partition("-")[2].startswith(word):
        return (
            short if asking_shell() == "bash" else run
        )  # bash replaces the word by the common start of all answers
    return ""


def _last_letters(run: str) -> str:
    return run[-_LAST_LETTERS:]


def _about(run: KnownRun) -> str:
    """Return the state, the name and the age of a run."""
    from launcher.cli.output.figures import age_text

    state = "removed from its host" if run.is_freed else run.state or "not known yet"
    age = f"  {age_text(time.time() - run.launched)} ago" if run.launched else ""
    return f"{state}  {run.name}{age}"
