"""The runs that a shell offers for a word: those that the verb can act on, by what this machine knows of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from launcher.cli.completion.shell_answers import Completion, asking_shell

if TYPE_CHECKING:
    from launcher.copy.known_runs import KnownRun

_LAST_LETTERS = 4
"""So many letters at the end of an id name a run in a glance."""
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
"""Which runs a verb can act on; one that is not here can act on any."""


def offered_runs(verb: str, word: str, before: Collection[str] = ()) -> list[Completion]:
    """Return the runs that a word may become, the newest first; those named `before` it are left out.

    A word is the start of an id, of its last part or of its name, or else the start of its last four letters. What a shell
    gets begins with the word, where an id does. Raises OSError or UsageError if there are no runs.
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
    """Return the word `last` if it fits, and the verb can act on that run."""
    from launcher.copy.known_runs import known_runs

    if before or not "last".startswith(word):
        return []
    newest = known_runs(lambda _: True)[:1]
    return [Completion("last", f"{run.short}  {_about(run)}") for run in newest if acts_on(run)]


def _forms(run: str, word: str) -> str:
    """Return the form of an id that a word begins: the whole or its last part; empty if it begins none."""
    short = run.rpartition("-")[2]
    if run.startswith(word):
        return run
    if short.startswith(word):
        return short
    if run.partition("-")[2].startswith(word):
        return (
            short if asking_shell() == "bash" else run
        )  # bash replaces a word by what all answers begin with
    return ""


def _last_letters(run: str) -> str:
    return run[-_LAST_LETTERS:]


def _about(run: KnownRun) -> str:
    """Return the state, the name and the age of a run."""
    from launcher.cli.output.figures import age_text

    state = "removed from its host" if run.is_freed else run.state or "not heard of yet"
    age = f"  {age_text(time.time() - run.launched)} ago" if run.launched else ""
    return f"{state}  {run.name}{age}"
