"""A word for whoever waits at a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from launcher.values.text import printable

AFTER_S = 1.0
_CLEAR_LINE = "\r\x1b[K"


@contextlib.contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Say on a terminal what is waited for, once that takes longer than a second; the line goes away at the end."""
    if not sys.stderr.isatty():
        yield
        return
    is_over = threading.Event()

    def report() -> None:
        if not is_over.wait(AFTER_S):
            sys.stderr.write(printable(f"waiting for {what}"))
            sys.stderr.flush()
            is_over.wait()
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
