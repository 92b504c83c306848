"""Questions at the terminal, before a command that could affect the wrong run or lose data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.output.say import complain
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy

YesFlag = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask to confirm the run that `last` means.")
]


def agrees(question: str) -> bool | None:
    """Ask at the terminal and return the answer, by default no. Return None without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    complain(question)
    try:
        return typer.confirm("continue?", default=False, err=True)
    except typer.Abort as error:
        complain("")  # end the question's line
        if isinstance(error.__context__, KeyboardInterrupt):  # a Ctrl-C ends the command as usual
            raise KeyboardInterrupt from None
        raise


def check_last(word: str, local_copy: LocalCopy, verb: str, *, yes: bool, options: str = "") -> None:
    """Ask the user to confirm the run that `last` means, unless `yes`.

    The command that an error suggests ends with `options`.

    Raises UsageError without a terminal, and Exit with code 1 if the user declines.
    """
    if word != "last" or yes:
        return
    found = f"last is {local_copy.run}"
    check_meant(
        f"{found}, {local_copy.record.plan().job or 'a run'}",
        found,
        f"launch {verb} {local_copy.short}{options}",
        verb,
    )


def check_meant(asked: str, found: str, command: str, verb: str) -> None:
    """Ask the user to confirm the target of a word such as `last`.

    The question begins with `asked`. Without a terminal, raises UsageError: it begins with `found` and suggests
    `command`, which names the target. Raises Exit with code 1 if the user declines.
    """
    is_meant = agrees(f"{asked}: {'remove' if verb == 'rm' else verb} it?")
    if is_meant is None:
        raise UsageError(f"{found}: name it, or add --yes\n  next   {command}")
    if not is_meant:
        raise typer.Exit(1)


def check_loss(local_copy: LocalCopy, loss: str) -> None:
    """Ask the user to confirm an immediate stop. `loss` says what would be lost.

    Raises UsageError without a terminal, and Exit with code 1 if the user declines.
    """
    words = f"{local_copy.run}: {loss}"
    is_meant = agrees(words)
    if is_meant is None:
        raise UsageError(f"{words}\n  to stop it anyway   launch stop --now {local_copy.short}")
    if not is_meant:
        raise typer.Exit(1)
