"""Ask the person at the terminal before something is lost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.output.say import complain
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.copy.mirror import Mirror

YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Go on without asking which run `last` is.")]


def agrees(question: str) -> bool | None:
    """Ask at the terminal; return the answer, no by default, or None if there is no terminal to ask at."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    complain(question)
    try:
        return typer.confirm("go on?", default=False, err=True)
    except typer.Abort as error:
        complain("")  # the question's line ends here
        if isinstance(error.__context__, KeyboardInterrupt):  # as if no question had been in its way
            raise KeyboardInterrupt from None
        raise


def check_last(word: str, mirror: Mirror, verb: str, *, yes: bool, options: str = "") -> None:
    """Have the person confirm which run `last` is, before something happens to it. `options` are those that the verb needs.

    Raises UsageError without a terminal and without `yes`, and Exit with code 1 if the person declines.
    """
    if word != "last" or yes:
        return
    found = f"last is {mirror.run}"
    check_meant(
        f"{found}, {mirror.record.plan().job or 'a run'}",
        found,
        f"launch {verb} {mirror.short}{options}",
        verb,
    )


def check_meant(asked: str, found: str, command: str, verb: str) -> None:
    """Have the person confirm what a word that names the latest stands for: `asked` in the question, `found` in the refusal.

    Raises UsageError with the command that names it if there is no terminal, and Exit with code 1 if the person declines.
    """
    is_meant = agrees(f"{asked}: {verb} it?")
    if is_meant is None:
        raise UsageError(f"{found}: name it, or add --yes\n  next   {command}")
    if not is_meant:
        raise typer.Exit(1)


def check_loss(mirror: Mirror, loss: str) -> None:
    """Have the person confirm what a run loses if it is stopped.

    Raises UsageError without a terminal, and Exit with code 1 if the person declines.
    """
    words = f"{mirror.run}: {loss}"
    is_meant = agrees(words)
    if is_meant is None:
        raise UsageError(f"{words}\n  if that is meant   launch stop --now {mirror.short}")
    if not is_meant:
        raise typer.Exit(1)
