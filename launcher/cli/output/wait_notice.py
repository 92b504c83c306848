"""A notice at the terminal when a wait becomes long."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from launcher.base.text import printable
from launcher.cli.output.say import complain

AFTER_S = 1.0
_CLEAR_LINE = "\r\x1b[K"


@contextlib.contextmanager
def once_it_takes(seconds: float, report: Callable[[threading.Event], None]) -> Iterator[None]:
    """Call `report` from another thread if the block takes longer than `seconds`.

    `report` gets an event that is set when the block ends.
    """
    is_over = threading.Event()

    def wait() -> None:
        if not is_over.wait(seconds):
            report(is_over)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def waiting_words(missing: Iterable[str]) -> str:
    """Return a line with the names that are waited for, at most five; empty without any."""
    names = sorted(missing)
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"waiting for {', '.join(names[:5])}{more}" if names else ""


def report_missing(missing: Callable[[], Iterable[str]]) -> AbstractContextManager[None]:
    """Print the names that are waited for on standard error, once the block takes longer than AFTER_S."""
    return once_it_takes(AFTER_S, lambda _is_over: complain(waiting_words(missing())))


@contextlib.contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Show "waiting for …" at a terminal if the block takes longer than a second. Clear the line when it ends."""
    if not sys.stderr.isatty():
        yield
        return

    def report(is_over: threading.Event) -> None:
        sys.stderr.write(printable(f"waiting for {what}"))
        sys.stderr.flush()
        is_over.wait()
        sys.stderr.write(_CLEAR_LINE)
        sys.stderr.flush()

    with once_it_takes(AFTER_S, report):
        yield
