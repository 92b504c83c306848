"""Handle SIGTERM and SIGHUP, and Ctrl-Z while the cursor is hidden."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.cli.output.streams import console as stream_console
from launcher.cli.output.streams import is_terminal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.status import Status

SHOW, HIDE, CLEAR_LINE = b"\x1b[?25h", b"\x1b[?25l", b"\r\x1b[2K"


class Terminated(BaseException):
    """Raised by SIGTERM, and by SIGHUP when the terminal closes. A command then ends as it does on Ctrl-C."""

    exit_code = 128 + signal.SIGTERM


def heed_sigterm() -> None:
    """Make the first SIGTERM or SIGHUP raise Terminated; the next SIGTERM ends the process immediately.

    Under `nohup`, SIGHUP stays ignored. A second SIGHUP from a closed terminal is ignored.
    """

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, end)


@contextlib.contextmanager
def cursor_back_on_stop(console: Console) -> Iterator[None]:
    """Show the cursor while Ctrl-Z stops the process, for a block that draws a live display on the console.

    The live display reappears when the process continues. The signal handler writes to the terminal directly: the
    drawing thread may hold the console's lock at that moment.
    """
    before = signal.getsignal(signal.SIGTSTP)
    if not console.file.isatty() or console.is_dumb_terminal or before == signal.SIG_IGN:
        yield
        return
    descriptor = console.file.fileno()

    def stop(number: int, _frame: object) -> None:
        os.write(descriptor, CLEAR_LINE + SHOW)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # stopped here until SIGCONT
        signal.signal(number, stop)
        os.write(descriptor, HIDE)

    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


def waiting(text: str) -> contextlib.AbstractContextManager[object]:
    """Show a spinner with `text` on standard error during a block. Show nothing if standard error is not a terminal."""
    if not is_terminal(stderr=True):
        return contextlib.nullcontext()
    return spinner(stream_console(stderr=True), text)


@contextlib.contextmanager
def spinner(console: Console, text: RenderableType, style: str = "status.spinner") -> Iterator[Status]:
    """Show a spinner during a block. Show nothing if the console is not a terminal."""
    with cursor_back_on_stop(console), console.status(text, spinner_style=style) as status:
        yield status
