"""SIGTERM, and Ctrl-Z while the cursor is hidden."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

SHOW, HIDE, CLEAR_LINE = b"\x1b[?25h", b"\x1b[?25l", b"\r\x1b[2K"


class Terminated(BaseException):
    """Raised by SIGTERM wherever the command stands, so that it ends as Ctrl-C would end it."""

    exit_code = 128 + signal.SIGTERM


def heed_sigterm() -> None:
    """Let SIGTERM raise Terminated, once; the next one ends us at once."""

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, end)


@contextlib.contextmanager
def cursor_back_on_stop(console: Console) -> Iterator[None]:
    """Give the cursor back for as long as Ctrl-Z stops us, while something live is drawn on the console.

    What is drawn shows itself again once we go on. The terminal is written to directly: whoever draws may be in the
    midst of it, and would keep our words until it is done.
    """
    before = signal.getsignal(signal.SIGTSTP)
    if not console.file.isatty() or console.is_dumb_terminal or before == signal.SIG_IGN:
        yield
        return
    descriptor = console.file.fileno()

    def stop(number: int, _frame: object) -> None:
        os.write(descriptor, CLEAR_LINE + SHOW)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # here we stand until SIGCONT
        signal.signal(number, stop)
        os.write(descriptor, HIDE)

    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


@contextlib.contextmanager
def spinner(console: Console, text: str, style: str = "status.spinner") -> Iterator[Status]:
    """Show that something goes on; where it is no terminal, nothing."""
    with cursor_back_on_stop(console), console.status(text, spinner_style=style) as status:
        yield status
